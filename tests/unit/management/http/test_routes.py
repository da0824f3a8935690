from __future__ import annotations

import pytest

from leveret.management.http.http_messages import Problem, Request, Response
from leveret.management.http.routes import Handler, Router


def handler(name: str) -> Handler:
    async def handle(request: Request) -> Response:
        return Response(body=name.encode())

    handle.__name__ = name
    return handle


@pytest.fixture
def router() -> Router:
    router = Router("/broker/")
    router.add("GET", "/api/data/{vhost}/queues", handler("queues"))
    router.add("GET", "/api/data/{vhost}/{queue}/range", handler("range"))
    router.add("DELETE", "/api/leases/{vhost}/{queue}/{name}", handler("release"))
    router.add("PUT", "/api/leases/{vhost}/{queue}/{name}", handler("open"))
    router.add("GET", "/api/leases/all/{queue}", handler("written"))
    router.add("GET", "/api/leases/{vhost}/{queue}/raw", handler("raw"))
    return router


@pytest.mark.parametrize(
    ("method", "path", "name", "parameters"),
    [
        ("GET", "/broker/api/data/%2F/queues", "queues", {"vhost": "/"}),
        ("HEAD", "/broker/api/data/%2F/queues/", "queues", {"vhost": "/"}),
        ("GET", "/broker/api/data/a%20b/queues/range", "range", {"vhost": "a b", "queue": "queues"}),
        ("DELETE", "/broker/api/leases/v/q/n%2Fm", "release", {"vhost": "v", "queue": "q", "name": "n/m"}),
        ("GET", "/broker/api/leases/all/q", "written", {"queue": "q"}),
        ("GET", "/broker/api/leases/all/q/raw", "raw", {"vhost": "all", "queue": "q"}),
        ("GET", "/broker/api/data/%ff/queues", "queues", {"vhost": "\udcff"}),
    ],
)
def test_paths_that_there_are(router: Router, method: str, path: str, name: str, parameters: dict[str, str]) -> None:
    found = router.find(method, path)
    assert (found.handler.__name__, found.parameters) == (name, parameters)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/broker",
        "/api/data/v/queues",
        "/broker/api/data//queues",
        "/broker/api/data/v",
        "/broker/api/data/v/q/x/y",
    ],
)
def test_paths_that_there_are_not(router: Router, path: str) -> None:
    with pytest.raises(Problem) as caught:
        router.find("GET", path)
    assert (caught.value.status, caught.value.error) == (404, "Object Not Found")


def test_a_method_that_there_is_not(router: Router) -> None:
    with pytest.raises(Problem) as caught:
        router.find("POST", "/broker/api/leases/v/q/n")
    assert caught.value.status == 405
    assert caught.value.headers == [("allow", "DELETE, OPTIONS, PUT")], "who does not answer GET does not answer HEAD"
