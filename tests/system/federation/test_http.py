"""Federation over HTTP and by leveretctl: RabbitMQ's paths, fields, codes, texts and rights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import leveret.testing
from leveret.testing import Broker
from tests.support.servers import call_api, until

UPSTREAM = "parameters/federation-upstream/%2F/u"
SET = "parameters/federation-upstream-set/%2F/s"
VALUE = {"uri": "amqp://ann:secret@127.0.0.1:1", "reconnect-delay": 1}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with leveret.testing.broker(config="management.tcp.port = 0\nmanagement.tcp.ip = 127.0.0.1\n") as broker:
        broker.admin.add_user("pat", "pat", tags=["policymaker"])
        broker.admin.add_user("may", "may", tags=["management"])
        yield broker


def ask(broker: Broker, method: str, path: str, body: Any = None, user: str = "guest") -> tuple[int, Any]:
    return call_api(broker.ports["management"], method, path, body, user)


def federate(broker: Broker, **definition: str) -> int:
    keys = {key.replace("_", "-"): one for key, one in definition.items()}
    body = {"pattern": "^amq.topic$", "definition": keys, "apply-to": "exchanges"}
    return ask(broker, "PUT", "policies/%2F/federate", body, "pat")[0]


def links(broker: Broker, path: str = "federation-links") -> list[dict[str, Any]]:
    status, found = ask(broker, "GET", path)
    assert status == 200
    return list(found)


def test_the_life_of_a_link(broker: Broker) -> None:
    assert links(broker) == []
    assert ask(broker, "PUT", UPSTREAM, {"value": VALUE}, "pat")[0] == 201
    assert ask(broker, "PUT", UPSTREAM, {"value": {**VALUE, "max-hops": 2}}, "pat")[0] == 204
    assert "secret" not in json.dumps(ask(broker, "GET", UPSTREAM))
    assert federate(broker, federation_upstream="u") == 201
    until(lambda: [one["status"] for one in links(broker)] == ["error"], "its failure")
    (one,) = links(broker)
    assert (one["exchange"], one["upstream_exchange"], one["upstream"]) == ("amq.topic", "amq.topic", "u")
    assert (one["type"], one["vhost"], one["uri"]) == ("exchange", "/", "amqp://127.0.0.1:1")
    assert "Connection refused" in one["error"] and "secret" not in json.dumps(one) and one["timestamp"]
    for path in ("federation-links/%2F", "federation-links/state/down/", "federation-links/%2F/state/down"):
        assert [row["id"] for row in links(broker, path)] == [one["id"]]
    assert ask(broker, "GET", "federation-links/none")[0] == 404
    node, restart = one["node"], f"federation-links/vhost/%2F/{one['id']}"
    assert ask(broker, "DELETE", f"{restart}/{node}/restart", None, "may")[0] == 401
    assert ask(broker, "DELETE", f"{restart}/{node}/restart", None, "pat")[0] == 204
    assert ask(broker, "DELETE", f"federation-links/vhost/%2F/00000000/{node}/restart")[0] == 404
    assert ask(broker, "DELETE", UPSTREAM, None, "pat")[0] == 204
    until(lambda: links(broker) == [], "its end")


def test_a_link_that_runs(broker: Broker) -> None:
    broker.admin.add_vhost("far")
    assert ask(broker, "PUT", UPSTREAM, {"value": {"uri": "amqp:///far"}})[0] == 201
    federate(broker, federation_upstream_set="all")
    until(lambda: [one["status"] for one in links(broker)] == ["running"], "it to run")
    (one,) = links(broker)
    assert one["local_connection"] and one["local_channel"]["name"].startswith(one["local_connection"])
    assert "error" not in one and links(broker, "federation-links/state/down/") == []
    assert ask(broker, "DELETE", UPSTREAM)[0] == 204
    until(lambda: links(broker) == [], "its end")
    broker.admin.delete_vhost("far")


def test_faults_and_rights(broker: Broker) -> None:
    status, told = ask(broker, "PUT", UPSTREAM, {"value": {"max-hops": 2}})
    assert (status, told["error"]) == (400, "bad_request")
    assert told["reason"] == 'Validation failed\n\nKey "uri" not found in u\n'
    for path, value in ((UPSTREAM, 5), (SET, {"upstream": "u"}), (SET, [5])):
        assert ask(broker, "PUT", path, {"value": value})[0] == 400
    assert ask(broker, "PUT", UPSTREAM, {"value": VALUE}, "may")[0] == 401
    status, told = ask(broker, "PUT", UPSTREAM, {"value": {"uri": "amqp:///none"}})
    assert 'user "guest" may not connect to vhost "none"' in told["reason"]
    assert ask(broker, "PUT", SET, {"value": [{"upstream": "u"}]}, "pat")[0] == 201
    assert federate(broker, federation_upstream="u", federation_upstream_set="s") == 400
    assert ask(broker, "PUT", UPSTREAM, {"value": VALUE})[0] == 201
    _, definitions = ask(broker, "GET", "definitions")
    assert sorted(one["component"] for one in definitions["parameters"]) == [
        "federation-upstream",
        "federation-upstream-set",
    ]
    for path in (UPSTREAM, SET):
        assert ask(broker, "DELETE", path)[0] == 204
    assert ask(broker, "POST", "definitions", {"parameters": definitions["parameters"]})[0] == 204
    assert ask(broker, "GET", SET)[1]["value"] == [{"upstream": "u"}]


def test_the_rights_of_the_user_who_set_an_upstream(broker: Broker) -> None:
    broker.admin.add_vhost("far")
    broker.admin.set_permissions("pat", "far", configure="^$", write="^$", read="^$")
    assert ask(broker, "PUT", UPSTREAM, {"value": {"uri": "amqp:///far"}}, "pat")[0] in (201, 204)
    federate(broker, federation_upstream="u")
    until(lambda: [one["status"] for one in links(broker)] == ["error"], "the refusal")
    assert "refused for user 'pat'" in links(broker)[0]["error"]
    ask(broker, "DELETE", UPSTREAM)
    until(lambda: links(broker) == [], "its end")
    broker.admin.delete_vhost("far")
