"""What operators do over HTTP, besides what is compared with RabbitMQ in `test_actions`."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast
from urllib.parse import quote

import pika
import pytest

import leveret.testing
from leveret.broker.login_attempts import FAILURES_MAX
from leveret.management.api.common.base import Handlers
from leveret.metadata.rules.passwords import verify_password
from leveret.testing.admin import AdminError
from tests.support.servers import until

LOOK: Final = {"count": 10, "ackmode": "ack_requeue_true", "encoding": "auto"}


@pytest.fixture(scope="module")
def node() -> Iterator[leveret.testing.Broker]:
    with leveret.testing.broker(config="management_port = 0") as node:
        yield node


def ask(
    node: leveret.testing.Broker,
    method: str,
    path: str,
    body: Any = None,
    user: str | None = "guest:guest",
    kind: str = "application/json",
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", node.ports["management"], timeout=60)
    headers = {"content-type": kind}
    if user is not None:
        headers["authorization"] = "Basic " + base64.b64encode(user.encode()).decode()
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    connection.request(method, path, data, headers)
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    return response.status, json.loads(answer) if answer else None


def publish(node: leveret.testing.Broker, queue: str, payload: str, vhost: str = "%2F") -> tuple[int, Any]:
    body = {"properties": {}, "routing_key": queue, "payload": payload, "payload_encoding": "string"}
    return ask(node, "POST", f"/api/exchanges/{vhost}/amq.default/publish", body)


# -- Messages ------------------------------------------------------------------------------------------------------


def test_a_queue_that_refuses(node: leveret.testing.Broker) -> None:
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    assert ask(node, "PUT", "/api/queues/%2F/full", {"arguments": arguments})[0] == 201
    assert publish(node, "full", "one") == (200, {"routed": True})
    status, told = publish(node, "full", "two")
    assert (status, told["reason"]) == (400, "rejected Unable to publish message. Check queue limits.")


def test_a_stream_is_not_got_from(node: leveret.testing.Broker) -> None:
    body = {"durable": True, "arguments": {"x-queue-type": "stream"}}
    assert ask(node, "PUT", "/api/queues/%2F/stream", body)[0] == 201
    status, told = ask(node, "POST", "/api/queues/%2F/stream/get", LOOK)
    assert (status, told["reason"]) == (
        400,
        "540 basic.get not supported by stream queues queue 'stream' in vhost '/'",
    )


def test_a_large_message_comes_back_whole(node: leveret.testing.Broker) -> None:
    ask(node, "PUT", "/api/queues/%2F/large", {})
    payload = "ü" * 500_000
    assert publish(node, "large", payload) == (200, {"routed": True})
    [got] = ask(node, "POST", "/api/queues/%2F/large/get", LOOK)[1]
    assert (got["payload"], got["payload_bytes"]) == (payload, 1_000_000)


def test_what_was_got_goes_back_if_the_client_goes(node: leveret.testing.Broker) -> None:
    ask(node, "PUT", "/api/queues/%2F/back", {})
    for number in range(50):
        publish(node, "back", str(number))
    connection = http.client.HTTPConnection("127.0.0.1", node.ports["management"], timeout=60)
    headers = {"authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}
    connection.request("POST", "/api/queues/%2F/back/get", json.dumps(LOOK | {"count": 50}), headers)
    connection.close()  # Nobody takes the answer.

    def left() -> list[int]:
        return [int(one["payload"]) for one in ask(node, "POST", "/api/queues/%2F/back/get", LOOK | {"count": 100})[1]]

    # It may not even have been read yet; and while it has them, nobody else gets them.
    until(lambda: left() == list(range(50)), "all are back, in their order")
    until(lambda: not node.admin.call("list_channels", columns=["pid"])["rows"], "its channel has gone")
    assert left() == list(range(50))


def test_a_vhost_without_room_for_connections(node: leveret.testing.Broker) -> None:
    assert ask(node, "PUT", "/api/vhosts/crowded")[0] == 201  # Which its maker may use.
    assert ask(node, "PUT", "/api/vhost-limits/crowded/max-connections", {"value": 0})[0] == 204
    assert ask(node, "PUT", "/api/queues/crowded/q", {})[0] == 201
    assert publish(node, "q", "hello", "crowded") == (200, {"routed": True})


def test_numbers_and_characters_that_are_none(node: leveret.testing.Broker) -> None:
    for body in (b'{"value": NaN}', b'{"value": 1e999}', b'{"value": "\\ud800"}', b'{"value": "\xff"}'):
        assert ask(node, "PUT", "/api/global-parameters/odd", body) == (
            400,
            {"error": "bad_request", "reason": "not_json"},
        )


def test_bodies_that_are_no_objects(node: leveret.testing.Broker) -> None:
    """As RabbitMQ answers them: nothing is an empty object, and who encodes twice is told so."""
    assert ask(node, "PUT", "/api/queues/%2F/plain", b"null")[0] == 201
    status, told = ask(node, "PUT", "/api/queues/%2F/plain", b'"{}"')
    assert (status, told["reason"].partition(":")[0]) == (400, "invalid payload")
    assert ask(node, "PUT", "/api/queues/%2F/plain", b"5")[1]["reason"] == "not_json"
    assert ask(node, "PUT", "/api/global-parameters/odd", b"null")[1]["reason"] == "[{key_missing,value}]"


def test_a_body_that_would_be_too_much_metadata(node: leveret.testing.Broker) -> None:
    assert ask(node, "PUT", "/api/global-parameters/big", {"value": "x" * (256 << 10)})[0] == 413


# -- Global parameters ---------------------------------------------------------------------------------------------

INTERNAL: Final = (
    "internal_cluster_id",
    "rebalance_state",
    "node_labels:a@b",
    "node_maintenance:a@b",
    "node_renaming:a@b",
)


def test_a_policymaker_sets_only_what_means_nothing_to_the_cluster(node: leveret.testing.Broker) -> None:
    node.admin.call("set_global_parameter", name="cluster_partition_handling", value="ignore")
    assert ask(node, "PUT", "/api/users/maker", {"password": "maker", "tags": "policymaker"})[0] in (201, 204)
    before = ask(node, "GET", "/api/global-parameters")[1]
    for name in (*INTERNAL, "cluster_name", "cluster_partition_handling", "ha-forbid-copying"):
        for method, body in (("PUT", {"value": "ignore"}), ("DELETE", None)):
            status, told = ask(node, method, f"/api/global-parameters/{name}", body, "maker:maker")
            assert (status, told["reason"]) == (401, "Not administrator user")
    assert ask(node, "PUT", "/api/global-parameters/free", {"value": [1]}, "maker:maker")[0] == 201
    assert ask(node, "DELETE", "/api/global-parameters/free", None, "maker:maker")[0] == 204
    assert ask(node, "GET", "/api/global-parameters", None, "maker:maker") == (200, before)


def test_nobody_writes_what_the_cluster_keeps_for_itself(node: leveret.testing.Broker) -> None:
    before = ask(node, "GET", "/api/global-parameters")[1]
    for name in INTERNAL:
        for method, body in (("PUT", {"value": {}}), ("DELETE", None)):
            status, told = ask(node, method, f"/api/global-parameters/{name}", body)
            assert (status, f"{name} is internal" in told["reason"]) == (400, True)
        commands: dict[str, dict[str, Any]] = {"set_global_parameter": {"value": {}}, "clear_global_parameter": {}}
        for command, rest in commands.items():
            with pytest.raises(AdminError, match=f"{name} is internal"):
                node.admin.call(command, name=name, **rest)
    document: Any = {"global_parameters": [{"name": name, "value": {}} for name in INTERNAL]}
    assert ask(node, "POST", "/api/definitions", document)[0] == 204
    assert ask(node, "GET", "/api/global-parameters")[1] == before
    exported = {one["name"] for one in ask(node, "GET", "/api/definitions")[1]["global_parameters"]}
    assert exported.isdisjoint(INTERNAL)


def test_the_name_of_a_cluster_has_a_bound_on_every_path(node: leveret.testing.Broker) -> None:
    long = "x" * 256
    assert ask(node, "PUT", "/api/global-parameters/cluster_name", {"value": long})[0] == 400
    assert ask(node, "PUT", "/api/cluster-name", {"name": long})[0] == 400
    document = {"global_parameters": [{"name": "cluster_name", "value": long}]}
    assert ask(node, "POST", "/api/definitions", document)[0] == 400
    for command, arguments in (
        ("set_cluster_name", {"name": long}),
        ("set_global_parameter", {"name": "cluster_name", "value": long}),
    ):
        with pytest.raises(AdminError, match="1 to 255 characters"):
            node.admin.call(command, **arguments)


# -- Policies ------------------------------------------------------------------------------------------------------


def test_slow_patterns_have_a_budget_on_every_path(node: leveret.testing.Broker) -> None:
    """One declare was held up for half a minute by a hundred of them."""
    assert ask(node, "PUT", "/api/vhosts/slow")[0] == 201
    slow = {"pattern": "(a+){50}b", "definition": {"max-length": 5}}
    taken = 0
    while (answer := ask(node, "PUT", f"/api/policies/slow/{taken}", slow))[0] == 201:
        taken += 1
    assert answer[0] == 400 and "the patterns of all policies of vhost 'slow'" in answer[1]["reason"]
    assert 1 <= taken < 10
    assert ask(node, "PUT", "/api/operator-policies/slow/o", slow)[0] == 400
    with pytest.raises(AdminError, match="the patterns of all policies"):
        node.admin.call(
            "set_policy", vhost="slow", name="p", apply_to="all", priority=0, operator=False, **slow
        )  # fmt: skip
    document = {"policies": [{"vhost": "slow", "name": "p", **slow}]}
    assert ask(node, "POST", "/api/definitions", document)[0] == 400
    assert len(ask(node, "GET", "/api/policies/slow")[1]) == taken
    # Usual ones are not concerned.
    document = {"policies": [{"vhost": "slow", **slow, "name": f"u{n}", "pattern": f".*u{n}.*"} for n in range(1_000)]}
    assert ask(node, "DELETE", "/api/policies/slow/0")[0] == 204
    assert ask(node, "POST", "/api/definitions", document)[0] == 204
    assert ask(node, "DELETE", "/api/vhosts/slow")[0] == 204


def test_a_file_whose_patterns_are_too_slow_together_is_not_imported(node: leveret.testing.Broker) -> None:
    slow = {"vhost": "slower", "pattern": "(a+){50}b", "definition": {"max-length": 5}}
    document = {"vhosts": [{"name": "slower"}], "policies": [{**slow, "name": str(number)} for number in range(100)]}
    assert ask(node, "POST", "/api/definitions", document)[0] == 400
    assert ask(node, "GET", "/api/vhosts/slower")[0] == 404


def test_a_permission_that_takes_long(node: leveret.testing.Broker) -> None:
    body = {"configure": "(a+){60}b", "write": "", "read": ""}
    status, told = ask(node, "PUT", "/api/permissions/%2F/guest", body)
    assert (status, "invalid_regexp" in told["reason"]) == (400, True)
    document = {"permissions": [{"user": "guest", "vhost": "/", **body}]}
    assert ask(node, "POST", "/api/definitions", document)[0] == 400
    with pytest.raises(AdminError, match="microseconds"):
        node.admin.call("set_permissions", user="guest", vhost="/", **body)


# -- Definitions ---------------------------------------------------------------------------------------------------


def test_definitions_as_a_file_of_a_form(node: leveret.testing.Broker) -> None:
    document = json.dumps({"vhosts": [{"name": "formed"}]}).encode()
    head = b'Content-Disposition: form-data; name="file"; filename="d.json"\r\nContent-Type: application/json'
    body = b"--line\r\n" + head + b"\r\n\r\n" + document + b"\r\n--line--\r\n"
    assert ask(node, "POST", "/api/definitions", body, kind="multipart/form-data; boundary=line")[0] == 204
    assert ask(node, "GET", "/api/vhosts/formed")[0] == 200
    status, told = ask(node, "POST", "/api/definitions", body, kind="multipart/form-data; boundary=other")
    assert (status, told["reason"]) == (400, "the form has no file")


def test_what_is_wrong_changes_nothing(node: leveret.testing.Broker) -> None:
    document = {"vhosts": [{"name": "half"}], "permissions": [{"user": "nobody", "vhost": "half"}]}
    status, told = ask(node, "POST", "/api/definitions", document)
    assert status == 400
    assert told["reason"].endswith("Nothing was imported.")
    assert ask(node, "GET", "/api/vhosts/half")[0] == 404


def test_an_export_can_be_imported(node: leveret.testing.Broker) -> None:
    ask(node, "PUT", "/api/queues/%2F/kept", {"durable": True, "arguments": {"x-max-length": 5}})
    exported = ask(node, "GET", "/api/definitions")[1]
    assert exported["queues"][-1]["name"] == "kept"
    ask(node, "DELETE", "/api/queues/%2F/kept")
    assert ask(node, "POST", "/api/definitions", exported)[0] == 204
    assert ask(node, "GET", "/api/definitions")[1]["queues"][-1]["arguments"] == {"x-max-length": 5}


async def test_what_belongs_together_is_done_without_its_client() -> None:
    loop = asyncio.get_running_loop()
    node = SimpleNamespace(loop=loop, metadata=None, broker=None)
    handlers = Handlers(cast(Any, SimpleNamespace(node=node, background=set())))
    begun, go_on, ended = (loop.create_future() for _ in range(3))

    async def work() -> None:
        begun.set_result(None)
        await go_on
        ended.set_result(None)

    request = loop.create_task(handlers.to_the_end(work()))
    await begun
    request.cancel()  # As when its client goes.
    await asyncio.wait([request])
    go_on.set_result(None)
    await asyncio.wait_for(ended, 60)
    assert request.cancelled()


# -- Health --------------------------------------------------------------------------------------------------------


def test_listeners(node: leveret.testing.Broker) -> None:
    port = node.ports["amqp"]
    check = "/api/health/checks/"
    assert ask(node, "GET", f"{check}port-listener/{port}") == (200, {"status": "ok", "port": port})
    status, told = ask(node, "GET", check + "port-listener/1")
    assert (status, told["status"], told["missing"]) == (503, "failed", 1)
    assert port in told["ports"]
    status, told = ask(node, "GET", check + "protocol-listener/mqtt")
    assert (status, told["missing"]) == (503, "mqtt")
    assert {"amqp", "http", "clustering"} <= set(told["protocols"])


def test_an_alarm(node: leveret.testing.Broker) -> None:
    ask(node, "PUT", "/api/queues/%2F/waiting", {})
    node.admin.call("set_disk_limit", limit={"bytes": 1 << 59})
    try:
        for check in ("alarms", "local-alarms"):
            status, told = ask(node, "GET", f"/api/health/checks/{check}")
            assert (status, told["alarms"]) == (503, [{"node": node.name, "resource": "disk"}])
        assert ask(node, "GET", "/api/healthchecks/node")[1]["status"] == "failed"
        assert publish(node, "waiting", "no")[0] == 503
    finally:
        node.admin.call("set_disk_limit", limit={"bytes": 0})
    assert ask(node, "GET", "/api/health/checks/alarms") == (200, {"status": "ok"})


# -- Logins --------------------------------------------------------------------------------------------------------


def test_a_hash_fits_its_password(node: leveret.testing.Broker) -> None:
    status, told = ask(node, "GET", "/api/auth/hash_password/s%2Fecret")
    assert status == 200
    assert verify_password("s/ecret", told["ok"])


def test_logins_that_fail_are_counted_together_and_bar_nobody_else() -> None:
    """Over HTTP and AMQP. What is late is told by the broker's own count, not by a clock."""
    form = b"username=guest&password=wrong"
    with leveret.testing.broker(config="management_port = 0") as node:
        kind = "application/x-www-form-urlencoded"
        for _ in range(FAILURES_MAX // 2):
            assert ask(node, "POST", "/api/login", form, None, kind)[0] == 401
            with pytest.raises(pika.exceptions.ProbableAuthenticationError):
                pika.BlockingConnection(pika.URLParameters(node.url.replace("guest:guest", "guest:wrong")))
        host: Any = node._running()
        [found] = host._server.node.broker.logins._failures.values()
        assert (found.count, list(found.due_ms)) == (FAILURES_MAX, [])
        assert ask(node, "POST", "/api/login", form, None, kind)[0] == 401
        with pytest.raises(pika.exceptions.ProbableAuthenticationError, match="ACCESS_REFUSED"):
            pika.BlockingConnection(pika.URLParameters(node.url.replace("guest:guest", "guest:wrong")))
        assert (found.count, len(found.due_ms)) == (FAILURES_MAX + 2, 2)
        assert ask(node, "GET", "/api/whoami")[0] == 200
        pika.BlockingConnection(pika.URLParameters(node.url)).close()


def test_logins_are_told_of_by_protocol() -> None:
    with leveret.testing.broker(config="management_port = 0") as node:
        path = f"/api/auth/attempts/{node.name}"
        pika.BlockingConnection(pika.URLParameters(node.url)).close()
        http, amqp = ask(node, "GET", path)[1]
        assert http["protocol"] == "http"
        assert amqp == {
            "protocol": "amqp091", "auth_attempts": 1, "auth_attempts_failed": 0, "auth_attempts_succeeded": 1,
        }  # fmt: skip
        assert ask(node, "DELETE", path)[0] == 204
        assert [one["protocol"] for one in ask(node, "GET", path)[1]] == ["http"]
        assert ask(node, "GET", "/api/auth/attempts/other@host")[0] == 404


def test_policies_are_parameters_as_in_rabbitmq(node: leveret.testing.Broker) -> None:
    body = {"pattern": "^po", "definition": {"max-length": 5}, "apply-to": "queues"}
    for kind in ("policies", "operator-policies"):
        assert ask(node, "PUT", f"/api/{kind}/%2F/po", body)[0] == 201
    value = {**body, "priority": 0}
    whose = ("operator_policy", "policy")
    theirs, ours = ({"value": value, "vhost": "/", "component": word, "name": "po"} for word in whose)
    assert [one for one in ask(node, "GET", "/api/parameters")[1] if one["name"] == "po"] == [theirs]
    assert ask(node, "GET", "/api/parameters/operator_policy/%2F")[1] == [theirs]
    assert ask(node, "GET", "/api/parameters/policy")[1] == [ours]
    assert [one["component"] for one in node.admin.call("list_parameters", vhost="/")] == ["operator_policy"]
    assert ask(node, "DELETE", "/api/parameters/policy/%2F/po")[0] == 400
    assert ask(node, "DELETE", "/api/parameters/operator_policy/%2F/po")[0] == 204
    assert ask(node, "GET", "/api/operator-policies")[1] == []
    assert ask(node, "DELETE", "/api/policies/%2F/po")[0] == 204


def test_dead_letters_that_nobody_takes_are_messages_of_their_queue(node: leveret.testing.Broker) -> None:
    arguments = {
        "x-queue-type": "quorum", "x-dead-letter-exchange": "nowhere", "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }  # fmt: skip
    assert ask(node, "PUT", "/api/queues/%2F/dying", {"durable": True, "arguments": arguments})[0] == 201
    for _ in range(3):
        publish(node, "dying", "m")
    got = {"count": 1, "ackmode": "reject_requeue_false", "encoding": "auto"}
    assert ask(node, "POST", "/api/queues/%2F/dying/get", got)[0] == 200
    until(lambda: ask(node, "GET", "/api/queues/%2F/dying")[1]["messages_dlx"] == 1, "a dead letter that waits")
    told = ask(node, "GET", "/api/queues/%2F/dying")[1]
    assert (told["messages"], told["messages_ready"], told["messages_unacknowledged"]) == (3, 2, 0)
    assert node.admin.queue("dying").messages == 3
    assert ask(node, "DELETE", "/api/queues/%2F/dying")[0] == 204


def test_passwords_are_not_logged(node: leveret.testing.Broker, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        ask(node, "PUT", "/api/users/quiet", {"password": "very-secret", "tags": "management"})
        ask(node, "PUT", "/api/users/quiet", {"password": "very-secret", "tags": 5})
        ask(node, "POST", "/api/login", b"username=quiet&password=very-secret-2", None)
        ask(node, "GET", "/api/whoami", user="quiet:very-secret-3")
        ask(node, "POST", "/api/definitions", {"users": [{"name": "", "password": "very-secret"}]})
    assert caplog.records
    assert "very-secret" not in caplog.text


# -- Masters -------------------------------------------------------------------------------------------------------


def test_a_dry_run_tells_what_would_be_moved(node: leveret.testing.Broker) -> None:
    status, plan = ask(node, "POST", "/api/rebalance/queues", {"dry_run": True, "strategy": "least-messages"})
    assert status == 200
    assert (plan["strategy"], plan["unit"], plan["moves"], plan["dry_run"]) == ("least-messages", "messages", [], True)
    assert list(plan["before"]) == list(plan["after"]) == [node.name]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"strategy": "best"}, "there is no strategy 'best'; there are least-masters, least-messages, "),
        ({"strategie": "random"}, "there is no strategie here"),
        ({"moves_max": "1"}, "moves_max must be a whole number"),
        ({"queues": "("}, "'(' is not a regular expression: "),
        ({"plan": {"version": 7}}, 'bad plan: a plan is an object with "version": 1 and "moves"'),
    ],
)
def test_what_a_rebalance_does_not_take(node: leveret.testing.Broker, body: dict[str, Any], reason: str) -> None:
    status, told = ask(node, "POST", "/api/rebalance/queues", {**body, "dry_run": True})
    assert status == 400
    assert told["reason"].startswith(reason)


def test_rebalancing_is_told_of(node: leveret.testing.Broker) -> None:
    assert ask(node, "POST", "/api/rebalance/queues") == (204, None)
    until(lambda: ask(node, "GET", "/api/rebalance")[1]["cluster"]["runs"] > 0, "a run")
    status, told = ask(node, "GET", "/api/rebalance")
    assert (status, told["trigger"], told["failed"]) == (200, "on-demand", 0)
    assert told["cluster"]["last"]["moves"] == 0


# -- Tools that people have ----------------------------------------------------------------------------------------


def test_what_is_put_can_be_read_back_and_deleted(node: leveret.testing.Broker) -> None:
    """As tools do that compare what is with what should be."""
    things = {
        "/api/vhosts/tf": {"description": "d", "tags": ["t"]},
        "/api/users/tf": {"password_hash": "", "tags": ["monitoring"]},
        "/api/permissions/tf/tf": {"configure": "a", "write": "b", "read": "c"},
        "/api/exchanges/tf/x": {"type": "topic", "durable": True, "auto_delete": False, "arguments": {}},
        "/api/queues/tf/q": {"durable": True, "auto_delete": False, "arguments": {"x-max-length": 5}},
        "/api/policies/tf/p": {"pattern": "a", "definition": {"max-length": 1}, "priority": 2, "apply-to": "queues"},
        "/api/operator-policies/tf/p": {"pattern": "a", "definition": {"max-length": 1}, "priority": 2},
        "/api/global-parameters/tf": {"value": {"a": [1]}},
    }
    for path, body in things.items():
        assert ask(node, "PUT", path, body)[0] == 201, path
        assert ask(node, "PUT", path, body)[0] == 204, path
        status, told = ask(node, "GET", path)
        assert (status, told | body) == (200, told), path

    binding = {"routing_key": "a.#", "arguments": {"k": "v"}}
    path = "/api/bindings/tf/e/x/q/q"
    assert ask(node, "POST", path, binding)[0] == 201
    [listed] = ask(node, "GET", path)[1]
    assert listed | binding == listed
    one = f"{path}/{quote(listed['properties_key'], safe='')}"
    assert ask(node, "GET", one) == (200, listed)
    for path in (one, *reversed(things)):
        if path != "/api/vhosts/tf":
            assert ask(node, "DELETE", path)[0] == 204, path
            assert ask(node, "GET", path)[0] == 404, path
    assert ask(node, "DELETE", "/api/vhosts/tf")[0] == 204


SCRIPT: Final = shutil.which("rabbitmqadmin")


@pytest.mark.skipif(SCRIPT is None, reason="RabbitMQ's rabbitmqadmin is not installed")
def test_rabbitmqadmin(node: leveret.testing.Broker, tmp_path: Path) -> None:
    def run(*words: str) -> str:
        command = [sys.executable, str(SCRIPT), "-H", "127.0.0.1", "-P", str(node.ports["management"]), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    ask(node, "PUT", "/api/vhosts/script")
    assert run("-V", "script", "declare", "exchange", "name=x", "type=topic") == "exchange declared"
    assert run("-V", "script", "declare", "queue", "name=q", "durable=true") == "queue declared"
    assert run("-V", "script", "declare", "binding", "source=x", "destination=q", "routing_key=a.#")
    assert run("-V", "script", "publish", "exchange=x", "routing_key=a.b", "payload=hello") == "Message published"
    assert "hello" in run("-V", "script", "get", "queue=q", "ackmode=ack_requeue_true")
    run("export", str(tmp_path / "all.json"))
    unbind = ("destination_type=queue", "destination=q", "properties_key=a.%23")
    assert run("-V", "script", "delete", "binding", "source=x", *unbind) == "binding deleted"
    ask(node, "DELETE", "/api/vhosts/script")
    run("import", str(tmp_path / "all.json"))
    assert "a.#" in run("-V", "script", "list", "bindings")
