"""What changes something over HTTP, answer by answer beside RabbitMQ's."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

import leveret.testing
from tests.system.management.actions import RECORDED, Asker, cases

CASES: Final = list(cases())
ROUTES: Final = [
    line.split(" ", 1) for line in (RECORDED.parent / "routes.txt").read_text().splitlines() if line[0] == "/"
]
# Where ours is another answer on purpose: its status, and what is in its body.
OURS: Final[dict[str, tuple[int, str]]] = {
    "- GET /api/whoami": (401, "not_authorized"),
    "guest GET /api/cluster-name": (200, "name"),
    'guest PUT /api/users/u5 {"password_hash": "", "hashing_algorithm": "nope", "tags": ""}': (400, "unknown password"),
    # The texts of Python's patterns.
    'guest PUT /api/permissions/v1/u1 {"configure": "[", "write": ".*", "read": ".*"}': (400, "invalid_regexp"),
    'guest PUT /api/topic-permissions/v1/u1 {"exchange": "amq.topic", "write": "[", "read": ".*"}': (
        400, "invalid_regexp",
    ),
    'guest PUT /api/policies/v1/p2 {"pattern": "[", "definition": {"max-length": 5}}': (
        400, "pattern should be regular expression but is invalid",
    ),
    'guest POST /api/bindings/v1/e/x1/q/q1 {"routing_key": "k/ü~%", "arguments": {"a": 1}}': (201, ""),
    # Limits that were all cleared are none.
    "guest GET /api/parameters": (200, ""),
    'guest PUT /api/parameters/vhost-limits/v1/limits {"value": {"max-queues": 50}}': (201, ""),
    # An import is looked through before anything is done, and everything wrong is told.
    'guest POST /api/definitions {"queues": [{"name": "iq", "vhost": "nowhere", "durable": true, "auto_delete": false, '
    '"arguments": {}}]}': (400, "Virtual host 'nowhere' does not exist"),
    "guest GET /api/definitions/vi": (200, "original_vhost_name"),
    'guest POST /api/exchanges/none/amq.default/publish {"properties": {}, "routing_key": "q1", "payload": "a", '
    '"payload_encoding": "string"}': (404, "Not Found"),
    # Who guesses passwords must not be able to wipe that out with a user that only looks.
    "mon DELETE /api/auth/attempts/NODE/source": (401, "Not administrator user"),
}  # fmt: skip


@pytest.fixture(scope="module")
def recorded() -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = json.loads(RECORDED.read_text())
    return answers


@pytest.fixture(scope="module")
def answers() -> Iterator[list[dict[str, Any]]]:
    with leveret.testing.broker(config="management_port = 0") as node:
        asker = Asker(node.ports["management"], node.name, node.ports["amqp"])
        yield [asker.ask(case) for case in CASES]


def test_the_record_is_of_these_cases(recorded: list[dict[str, Any]]) -> None:
    assert [one["case"] for one in recorded] == [str(case) for case in CASES]


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: str(CASES[number])[:100])
def test_answer(number: int, recorded: list[dict[str, Any]], answers: list[dict[str, Any]]) -> None:
    theirs, ours = recorded[number], answers[number]
    case = str(CASES[number])
    if case in OURS and theirs != {"case": case, **ours}:
        status, text = OURS[case]
        assert ours["status"] == status
        assert text in json.dumps(ours["json"])
    elif theirs["status"] == 500:  # Nobody has thought of it there.
        assert ours["status"] in (400, 404)
        assert ours["json"]["reason"]
    else:
        assert (ours["status"], ours["location"]) == (theirs["status"], theirs["location"])
        assert ours["status"] == 405 or ours["json"] == theirs["json"]


# -- What can be asked -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def connection() -> Iterator[http.client.HTTPConnection]:
    with leveret.testing.broker(config="management_port = 0") as node:
        yield http.client.HTTPConnection("127.0.0.1", node.ports["management"], timeout=60)


@pytest.mark.parametrize(("path", "methods"), ROUTES, ids=[path for path, _ in ROUTES])
def test_whatever_rabbitmq_can_be_asked(path: str, methods: str, connection: http.client.HTTPConnection) -> None:
    """OPTIONS tells which methods a path has. One kind of path is Erlang's alone."""
    filled = path.replace("{dtype}", "q").replace("{", "").replace("}", "")
    connection.request("OPTIONS", filled)
    response = connection.getresponse()
    response.read()
    assert response.status == 200
    allowed = response.headers["allow"].split(", ")
    connection.request("PATCH", filled, headers={"authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="})
    unknown = connection.getresponse()
    unknown.read()
    if "/memory/ets" in path:
        assert unknown.status == 404
    else:
        assert set(methods.split()) <= set(allowed)
        assert (unknown.status, unknown.headers["allow"].split(", ")) == (405, allowed)
