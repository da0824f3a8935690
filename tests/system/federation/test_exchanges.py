"""Federated exchanges between two brokers: what is made upstream, what arrives, and what is deleted at the end."""

from __future__ import annotations

from typing import Any

import pika
import pytest

from tests.support.servers import until
from tests.system.federation.conftest import Site

QUEUE = "federation: x -> down"


def bound_upstream(up: Site, exchange: str = "x") -> list[str]:
    return [key for destination, key in up.bindings(exchange) if destination.startswith("federation: ")]


@pytest.fixture
def linked(down: Site, up: Site) -> tuple[Site, Site]:
    """Exchange x is federated, and queue q is bound to it downstream with red.#."""
    down.queue("q", down.exchange("x"), "red.#")
    down.upstream("u", up.url)
    down.federate("^x$")
    down.until_runs()
    return down, up


def test_what_is_bound_here_comes_from_there(linked: tuple[Site, Site]) -> None:
    down, up = linked
    (link,) = down.links()
    assert (link["exchange"], link["upstream_exchange"], link["upstream"]) == ("x", "x", "u")
    assert (link["vhost"], link["type"], len(link["id"])) == ("/", "exchange", 8)
    assert link["local_connection"] and "guest" not in str(link)
    assert up.queues() == [QUEUE] and f"{QUEUE} B" in up.exchanges() and f"{QUEUE} A" not in up.exchanges()
    assert bound_upstream(up) == ["red.#"]
    for key in ("red.1", "blue.1", "red.2"):
        up.publish("x", key, key.encode(), headers={"mine": 1}, user_id="guest", message_id="m")
    until(lambda: down.count("q") == 2, "messages to arrive")
    (first, properties), (second, _) = down.take("q")
    assert (first, second) == (b"red.1", b"red.2")
    (hop,) = properties.headers["x-received-from"]
    assert list(hop) == ["uri", "exchange", "redelivered", "cluster-name", "vhost"]
    assert (hop["exchange"], hop["redelivered"], hop["cluster-name"], hop["vhost"]) == ("x", False, "up", "/")
    assert "guest" not in hop["uri"] and hop["uri"].startswith("amqp://127.0.0.1:")
    assert (properties.headers["mine"], properties.user_id, properties.message_id) == (1, None, "m")
    until(lambda: up.count(QUEUE) == 0, "acknowledgements")
    until(lambda: down.links()[0]["forwarded"] == 2, "the count")


def test_bindings_are_passed_on_and_taken_back(linked: tuple[Site, Site]) -> None:
    down, up = linked
    down.queue("r", "x", "red.#")
    down.queue("r", "x", "blue.#")
    until(lambda: bound_upstream(up) == ["blue.#", "red.#"], "the new binding")
    down.channel.queue_unbind("q", "x", "red.#")
    down.channel.queue_unbind("r", "x", "blue.#")
    until(lambda: bound_upstream(up) == ["red.#"], "the binding to go")
    down.channel.queue_delete("r")
    until(lambda: bound_upstream(up) == [], "the last binding to go")
    down.channel.exchange_declare("behind", "fanout")
    down.channel.exchange_bind("behind", "x", "k")
    until(lambda: bound_upstream(up) == ["k"], "the binding of an exchange")


def test_headers_exchanges_keep_the_arguments_of_bindings(down: Site, up: Site) -> None:
    down.exchange("x", "headers")
    down.queue("q")
    for colour in ("red", "blue"):
        down.channel.queue_bind("q", "x", "", {"x-match": "all", "colour": colour})
    down.upstream("u", up.url, bind_nowait=True)
    down.federate("^x$")
    down.until_runs()
    down.channel.queue_unbind("q", "x", "", {"x-match": "all", "colour": "blue"})
    until(lambda: len(bound_upstream(up)) == 1, "one binding to go")
    for colour in ("red", "blue", "red"):
        up.publish("x", "", headers={"colour": colour})
    until(lambda: down.count("q") == 2, "what matches")


def test_many_bindings(down: Site, up: Site) -> None:
    down.queue("q", down.exchange("x"))
    for number in range(150):
        down.channel.queue_bind("q", "x", f"k{number}")
    down.upstream("u", up.url)
    down.federate("^x$")
    down.until_runs()
    assert len(bound_upstream(up)) == 151
    for number in range(150):
        down.channel.queue_unbind("q", "x", f"k{number}")
    until(lambda: bound_upstream(up) == [""], "the bindings to go")


@pytest.mark.parametrize("end", ["policy", "upstream", "exchange"])
def test_the_end_of_a_link_deletes_what_it_has_made(linked: tuple[Site, Site], end: str) -> None:
    down, up = linked
    admin = down.broker.admin
    if end == "policy":
        admin.clear_policy("federate")
    elif end == "upstream":
        admin.call("clear_parameter", vhost="/", component="federation-upstream", name="u")
    else:
        down.channel.exchange_delete("x")
    until(lambda: up.queues() == [] and not any(name.startswith("fed") for name in up.exchanges()), "it to be gone")
    assert down.links() == [] and "x" in up.exchanges()


def test_resource_cleanup_mode_never(down: Site, up: Site) -> None:
    down.queue("q", down.exchange("x"))
    down.upstream("u", up.url, resource_cleanup_mode="never")
    down.federate("^x$")
    down.until_runs()
    down.broker.admin.clear_policy("federate")
    until(lambda: down.links() == [], "the end")
    up.publish("x", "", b"later")
    assert up.count(QUEUE) == 1
    down.federate("^x$")
    until(lambda: down.count("q") == 1, "what waited")
    up.channel.queue_delete(QUEUE)


def test_arguments_of_the_queue_upstream(down: Site, up: Site) -> None:
    down.queue("q", down.exchange("x"))
    down.upstream("u", up.url, expires=3_600_000, message_ttl=60_000, ha_policy="all", queue_type="classic")
    down.federate("^x$")
    down.until_runs()
    found = arguments_of(up)
    assert (found["x-expires"], found["x-message-ttl"], found["x-ha-policy"]) == (3_600_000, 60_000, "all")
    assert (found["x-internal-purpose"], found["x-queue-type"]) == ("federation", "classic")
    down.upstream("u", up.url, expires=1_800_000)  # The queue is empty, and made anew.
    until(lambda: arguments_of(up) == {"x-expires": 1_800_000, "x-internal-purpose": "federation"}, "other arguments")
    down.until_runs()


def arguments_of(up: Site) -> dict[str, Any]:
    runner: Any = up.broker._running()
    spec = runner._server.node.metadata.queues.get(("/", QUEUE))
    return {} if spec is None else {name: field.value for name, field in spec.arguments.items()}


def test_messages_wait_upstream_while_the_downstream_is_away(linked: tuple[Site, Site]) -> None:
    down, up = linked
    down.broker.stop()
    for number in range(50):
        up.publish("x", "red.1", b"%d" % number)
    assert up.count(QUEUE) == 50
    down.broker.start()
    down.connect()
    until(lambda: down.count("q") == 50, "what waited")
    assert [body for body, _ in down.take("q")] == [b"%d" % number for number in range(50)]
    until(lambda: f"{QUEUE} B" not in up.exchanges() and f"{QUEUE} C" in up.exchanges(), "the next internal exchange")
    assert bound_upstream(up) == ["red.#"]


def test_an_upstream_that_restarts(linked: tuple[Site, Site]) -> None:
    down, up = linked
    up.broker.restart()
    up.connect()
    up.publish("x", "red.1", b"after")
    until(lambda: down.count("q") == 1, "what came after")
    down.until_runs()


def test_a_link_that_cannot_run_says_why_and_when_it_tries_again(down: Site, up: Site) -> None:
    down.exchange("x")
    down.upstream("login", up.url.replace("guest:guest", "guest:secret"))
    down.upstream("port", "amqp://127.0.0.1:1")
    down.upstream("vhost", "amqp:///none")
    down.federate("^x$")
    until(lambda: [one["status"] for one in down.links()] == ["error"] * 3, "all to fail")
    found = {one["upstream"]: one for one in down.links()}
    assert "ACCESS_REFUSED" in found["login"]["error"] and "secret" not in str(found)
    assert found["port"]["error"] == "upstream amqp://127.0.0.1:1: Connection refused"
    assert "vhost none not found" in found["vhost"]["error"]

    def will_try() -> bool:
        return any(one["next_attempt"] for one in down.links() if one["status"] == "error")

    until(will_try, "the time of the next attempt")


def test_an_exchange_of_another_type_upstream(down: Site, up: Site) -> None:
    """The bindings are made all the same, and route as the exchange there does."""
    up.exchange("x", "fanout")
    down.queue("q", down.exchange("x", "direct"), "k")
    down.upstream("u", up.url)
    down.federate("^x$")
    down.until_runs()
    up.publish("x", "other")
    up.publish("x", "k")
    until(lambda: down.count("q") == 1, "what the exchange here routes")
    until(lambda: down.links()[0]["forwarded"] == 2, "both to be counted")


def test_upstream_without_rights(down: Site, up: Site) -> None:
    up.broker.admin.add_user("weak", "weak")
    up.broker.admin.set_permissions("weak", configure="^$", write="^$", read="^$")
    down.exchange("x")
    down.upstream("u", up.url.replace("guest:guest", "weak:weak"))
    down.federate("^x$")
    until(lambda: [one["status"] for one in down.links()] == ["error"], "the refusal")
    assert "ACCESS_REFUSED" in down.links()[0]["error"]
    up.broker.admin.delete_user("weak")


def test_a_loop_ends(down: Site, up: Site) -> None:
    for site, other in ((down, up), (up, down)):
        site.queue("q", site.exchange("x"), "#")
        site.upstream("u", other.url, max_hops=5)
        site.federate("^x$")
    down.until_runs()
    up.until_runs()
    up.publish("x", "k", b"from up")
    down.publish("x", "k", b"from down")
    for site in (down, up):
        until(lambda site=site: site.count("q") == 2, "both messages")  # type: ignore[misc]
    up.publish("x", "k", b"again")
    for site in (down, up):
        until(lambda site=site: site.count("q") == 3, "the third")  # type: ignore[misc]
        assert sorted(body for body, _ in site.take("q")) == [b"again", b"from down", b"from up"]
    up.clear()


def test_from_a_vhost_of_this_cluster(down: Site) -> None:
    down.broker.admin.add_vhost("other")
    down.queue("q", down.exchange("x"), "#")
    down.upstream("u", "amqp:///other", exchange="y")
    down.federate("^x$")
    down.until_runs()
    with pika.BlockingConnection(pika.URLParameters(down.url.replace("%2F", "other"))) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("y", "k", b"from other")
    until(lambda: down.count("q") == 1, "the message")
    ((_, properties),) = down.take("q")
    (hop,) = properties.headers["x-received-from"]
    assert (hop["cluster-name"], hop["vhost"], hop["exchange"]) == ("down", "other", "x")
    users = down.broker.admin.call("list_connections", columns=["user"])["rows"]
    assert ["none"] in users and all(user.isprintable() for (user,) in users)  # The link's own, as in RabbitMQ.
    names = [one.name for one in down.broker.admin.queues("other")]
    assert names == ["federation: y -> down:/:x"]
    down.broker.admin.delete_vhost("other")


@pytest.mark.parametrize("mode", ["on-publish", "no-ack"])
def test_other_ack_modes(down: Site, up: Site, mode: str) -> None:
    down.queue("q", down.exchange("x"), "#")
    down.upstream("u", up.url, ack_mode=mode)
    down.federate("^x$")
    down.until_runs()
    for number in range(20):
        up.publish("x", "k", b"%d" % number)
    until(lambda: down.count("q") == 20, "all")
    until(lambda: up.count(QUEUE) == 0, "acknowledgements")


def test_connections_that_break_again_and_again_lose_and_double_nothing(linked: tuple[Site, Site]) -> None:
    down, up = linked
    sent = 0
    for _ in range(6):
        for _ in range(100):
            up.publish("x", "red.1", b"%d" % sent)
            sent += 1
        up.broker.admin.close_clients(["Leveret"])
    until(lambda: down.count("q") >= sent, "all")
    until(lambda: up.count(QUEUE) == 0, "acknowledgements")
    assert sorted(int(body) for body, _ in down.take("q")) == list(range(sent))


def test_restart_by_id(linked: tuple[Site, Site]) -> None:
    down, _ = linked
    (before,) = down.links()
    down.broker.admin.call("restart_federation_link", id=before["id"])
    (after,) = down.until_runs()
    assert after["id"] == before["id"]
    with pytest.raises(Exception, match="Link with the given ID was not found"):
        down.broker.admin.call("restart_federation_link", id="00000000")
