"""Peer discovery in Kubernetes, against a server that answers as its API does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from leveret.node.cluster import discovery
from leveret.node.config.load import load
from leveret.node.config.settings import KubernetesService, Settings
from leveret.node.system.kubernetes_api import NoAnswer, ServiceAddresses, addresses_of, endpoints
from tests.unit.node.config.configuration import HOME

ENDPOINTS = {
    "kind": "Endpoints",
    "subsets": [
        {
            "addresses": [{"ip": "10.0.0.2", "hostname": "hare-1"}],
            "notReadyAddresses": [{"ip": "10.0.0.1", "hostname": "hare-0"}, {"ip": "10.0.0.3"}],
            "ports": [{"port": 25672}],
        }
    ],
}


class Api:
    """Answers one path, to whoever has the token."""

    def __init__(self, folder: Path) -> None:
        self.status, self.body = 200, json.dumps(ENDPOINTS)
        self.asked: list[str] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                api.asked.append(self.path)
                allowed = self.headers["Authorization"] == "Bearer secret"
                self.send_response(api.status if allowed else 401)
                self.end_headers()
                self.wfile.write(api.body.encode())

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        (folder / "token").write_text("secret\n")
        (folder / "namespace").write_text("burrow")
        self.folder = folder

    def service(self, **changes: Any) -> KubernetesService:
        service = KubernetesService(
            "hare-nodes",
            "http",
            "127.0.0.1",
            self.server.server_port,
            str(self.folder / "token"),
            namespace_path=str(self.folder / "namespace"),
        )
        return service._replace(**changes)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    made = Api(tmp_path)
    thread = Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def test_all_pods_of_the_service_are_found_ready_or_not(api: Api) -> None:
    assert endpoints(api.service()) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert api.asked == ["/api/v1/namespaces/burrow/endpoints/hare-nodes"]


@pytest.mark.parametrize("found", [[], {"subsets": [{"addresses": [{"hostname": "hare-0"}]}]}, "x"])
def test_an_answer_of_another_shape_is_none(found: Any) -> None:
    with pytest.raises(ValueError):
        addresses_of(found)


def test_a_service_without_pods_has_no_addresses() -> None:
    assert addresses_of({"subsets": None}) == addresses_of({}) == addresses_of({"subsets": [{}]}) == []


def test_no_answer_says_why(api: Api) -> None:
    with pytest.raises(NoAnswer, match="No such file"):
        endpoints(api.service(token_path=str(api.folder / "none")))
    (api.folder / "token").write_text("wrong")
    with pytest.raises(NoAnswer, match="answers 401"):
        endpoints(api.service())
    (api.folder / "token").write_text("secret")
    api.body = "{"
    with pytest.raises(NoAnswer, match="cannot be read"):
        endpoints(api.service())
    with pytest.raises(NoAnswer, match="does not answer"):
        endpoints(api.service(port=1))


async def test_dns_is_asked_where_the_api_refuses(api: Api) -> None:
    async def by_dns(name: str) -> Sequence[str]:
        return [f"{name} in DNS"]

    assert await ServiceAddresses(api.service(), by_dns).find("hare-nodes") == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    api.status = 403
    assert await ServiceAddresses(api.service(), by_dns).find("hare-nodes") == ["hare-nodes in DNS"]


def settings_for(api: Api, hint: int = 3) -> Settings:
    """As RabbitMQ's cluster operator writes it, with this API."""
    conf = api.folder / "rabbitmq.conf"
    service = api.service()
    conf.write_text(
        "cluster_formation.peer_discovery_backend = rabbit_peer_discovery_k8s\n"
        f"cluster_formation.k8s.host = {service.host}\ncluster_formation.k8s.port = {service.port}\n"
        "cluster_formation.k8s.scheme = http\ncluster_formation.k8s.address_type = hostname\n"
        f"cluster_formation.k8s.token_path = {service.token_path}\n"
        f"cluster_formation.k8s.namespace_path = {service.namespace_path}\n"
        f"cluster_formation.target_cluster_size_hint = {hint}\n"
    )
    environ = {
        "K8S_SERVICE_NAME": "hare-nodes",
        "RABBITMQ_NODENAME": "rabbit@hare-0.hare-nodes.burrow",
        "RABBITMQ_USE_LONGNAME": "true",
        "RABBITMQ_NODE_PORT": "5672",
    }
    return load([], HOME | environ, str(conf)).settings


async def test_the_first_of_the_pods_founds_when_all_answer(api: Api) -> None:
    settings = settings_for(api)
    waits: list[float] = []
    silent = {"10.0.0.3"}

    async def ask(address: tuple[str, int]) -> dict[str, Any] | None:
        host, port = address
        assert port == 25_672
        if host == "10.0.0.1":
            return dict(discovery.OWN)
        return None if host in silent else {"name": f"rabbit@hare-{int(host[-1]) - 1}.hare-nodes.burrow"}

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        silent.clear()

    assert await discovery.decide(settings, settings.node_name, ask, sleep) == discovery.Found()
    assert len(waits) == 1
    other = "rabbit@hare-1.hare-nodes.burrow"
    heard = await discovery.ask_all([("10.0.0.1", 25_672)], ask)
    verdict = discovery.judge(settings, other, heard)
    assert isinstance(verdict, discovery.Wait) and "1 of the 3 nodes" in verdict.reason


def test_without_a_number_of_nodes_the_start_is_refused(api: Api) -> None:
    from leveret.node.config.load import ConfigError

    conf = api.folder / "rabbitmq.conf"
    conf.write_text("cluster_formation.peer_discovery_backend = k8s\n")
    with pytest.raises(ConfigError, match="two that find only themselves in Kubernetes would found two clusters"):
        load([], HOME, str(conf))
