"""Shovels between two brokers, and within one: what arrives, and what is told of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pika
import pytest

from leveret.base.json_values import Json
from leveret.cli.ctl.main import main as leveretctl
from leveret.metadata.model.commands import SetParameter
from leveret.metadata.shovel import parameters
from leveret.testing import AdminError
from tests.support.servers import until
from tests.system.shovel.conftest import Site

DIRECT = "amqp://"


def test_messages_move_in_order_and_are_gone_here(here: Site, far: Site) -> None:
    bodies = here.fill(here.queue("a"), 300)
    here.shovel("s", src_uri=DIRECT, src_queue="a", dest_uri=far.url, dest_queue="b")
    until(lambda: far.count("b") == 300, "it to be so")
    until(lambda: here.count("a") == 0, "it to be so")
    assert far.take("b") == bodies
    status = here.statuses()["s"]
    assert (status["state"], status["forwarded"], status["pending"]) == ("running", 300, 0)
    assert status["bytes"] > 300 * 10 and "guest" not in str(status)


@pytest.mark.parametrize("mode", ["on-confirm", "on-publish", "no-ack"])
def test_ack_modes_from_far_to_here(here: Site, far: Site, mode: str) -> None:
    bodies = far.fill(far.queue("a"), 50)
    here.shovel("s", src_uri=far.url, src_queue="a", dest_uri=DIRECT, dest_queue="b", ack_mode=mode)
    until(lambda: here.count("b") == 50, "it to be so")
    until(lambda: far.count("a") == 0, "it to be so")
    assert here.take("b") == bodies


def test_from_an_exchange_to_an_exchange_with_properties_and_headers(here: Site, far: Site) -> None:
    far.channel.exchange_declare("out", "topic", durable=True)
    far.channel.queue_bind(far.queue("b"), "out", "red.#")
    here.channel.exchange_declare("in", "topic", durable=True)
    here.shovel(
        "s", src_uri=DIRECT, src_exchange="in", src_exchange_key="red.#", dest_uri=[far.url], dest_exchange="out",
        dest_add_forward_headers=True, dest_add_timestamp_header=True, dest_publish_properties={"app_id": "x"},
    )  # fmt: skip
    until(lambda: here.statuses()["s"]["state"] == "running", "it to be so")
    for key in ("red.one", "blue.one", "red.two"):
        properties = pika.BasicProperties(headers={"mine": 1}, message_id=key)
        here.channel.basic_publish("in", key, b"x", properties)
    until(lambda: far.count("b") == 2, "it to be so")
    method, properties, _ = far.channel.basic_get("b", auto_ack=True)
    assert method is not None and method.routing_key == "red.one"
    assert (properties.app_id, properties.message_id, properties.headers["mine"]) == ("x", "red.one", 1)
    (told,) = properties.headers["x-shovelled"]
    assert (told["shovel-name"], told["src-exchange"], told["dest-exchange"]) == ("s", "in", "out")
    assert properties.headers["x-shovelled-timestamp"] > 1_600_000_000


@pytest.mark.parametrize(("number", "moved"), [(0, 0), (1, 1), (7, 7), (20, 20), ("queue-length", 20)])
def test_a_shovel_that_ends_itself(here: Site, far: Site, number: Any, moved: int) -> None:
    bodies = here.fill(here.queue("a"), 20)
    here.shovel("s", src_uri=DIRECT, src_queue="a", dest_uri=far.url, dest_queue="b", src_delete_after=number)
    until(lambda: "s" not in here.statuses(), "it to be so")
    until(lambda: here.count("a") == 20 - moved, "it to be so")
    assert far.take("b") == bodies[:moved]
    assert here.take("a") == bodies[moved:]


@pytest.mark.parametrize("number", [21, 10**15, "never"])
def test_a_shovel_whose_end_is_not_reached(here: Site, far: Site, number: Any) -> None:
    bodies = here.fill(here.queue("a"), 20)
    here.shovel("s", src_uri=DIRECT, src_queue="a", dest_uri=far.url, dest_queue="b", src_delete_after=number)
    until(lambda: far.count("b") == 20 and here.count("a") == 0, "all to be moved")
    status = here.statuses()["s"]
    assert (status["state"], status["forwarded"]) == ("running", 20)
    assert status["remaining"] == (None if number == "never" else number - 20)
    assert far.take("b") == bodies


def test_a_number_is_moved_in_all_over_failures(here: Site, far: Site) -> None:
    here.fill(here.queue("a"), 60)
    far.queue("b")
    here.shovel(
        "s", src_uri=DIRECT, src_queue="a", dest_uri=far.url, dest_queue="b", src_delete_after=50,
        src_prefetch_count=1, reconnect_delay=0.01,
    )  # fmt: skip
    for number in (10, 25, 40):
        until(lambda number=number: far.count("b") >= number, "progress")  # type: ignore[misc]
        far.broker.admin.close_clients(["Leveret"])
    until(lambda: "s" not in here.statuses(), "it to end")
    assert (here.count("a"), far.count("b")) == (10, 50)


def test_a_shovel_that_ends_itself_after_a_while(here: Site, far: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """From when it runs; what is under way then arrives, and what comes later stays."""
    monkeypatch.setattr(parameters, "DURATION_S_MIN", 1)
    bodies = here.fill(here.queue("a"), 20)
    here.shovel("s", src_uri=DIRECT, src_queue="a", dest_uri=far.url, dest_queue="b", src_delete_after_duration=1)
    until(lambda: far.count("b") == 20, "all to be moved")
    assert here.statuses()["s"]["state"] == "running"
    until(lambda: "s" not in here.statuses(), "it to end")
    later = here.fill("a", 5, first=20)
    assert (far.take("b"), here.take("a")) == (bodies, later)


def test_leveretctl_moves_messages(here: Site, far: Site, capsys: pytest.CaptureFixture[str]) -> None:
    here.fill(here.queue("a"), 30)
    here.queue("b")
    assert leveretctl([*here.broker.leveretctl, "move_messages", "a", "b", "--count", "10"]) == 0
    assert "10 messages were moved" in capsys.readouterr().out
    assert leveretctl([*here.broker.leveretctl, "move_messages", "a", "c", "--to-uri", far.url]) == 0
    assert "20 messages were moved" in capsys.readouterr().out
    assert (here.count("a"), here.count("b"), far.count("c")) == (0, 10, 20)
    assert leveretctl([*here.broker.leveretctl, "move_messages", "a", "b", "--count", "x"]) == 65
    assert "guest:guest" not in capsys.readouterr().out


def test_an_empty_queue_ends_it_at_once(here: Site) -> None:
    here.queue("a")
    here.shovel("s", src_uri=DIRECT, src_queue="a", dest_uri=DIRECT, dest_queue="b", src_delete_after="queue-length")
    until(lambda: not here.statuses(), "it to be so")


def test_pause_resume_restart_and_delete(here: Site, far: Site) -> None:
    call = here.broker.admin.call
    here.fill(here.queue("a"), 5)
    here.shovel("s", src_uri=DIRECT, src_queue="a", dest_uri=far.url, dest_queue="b")
    until(lambda: far.count("b") == 5 and here.count("a") == 0, "all to be moved and acknowledged")
    call("pause_shovel", vhost="/", name="s", paused=True)
    here.fill("a", 5, first=5)
    assert here.statuses()["s"]["state"] == "paused"
    assert (here.count("a"), far.count("b")) == (5, 5)
    with pytest.raises(AdminError, match="paused"):
        call("restart_shovel", vhost="/", name="s")
    call("pause_shovel", vhost="/", name="s", paused=False)
    until(lambda: far.count("b") == 10, "it to be so")
    call("restart_shovel", vhost="/", name="s")
    here.fill("a", 5, first=10)
    until(lambda: far.count("b") == 15, "it to be so")
    call("delete_shovel", vhost="/", name="s")
    assert here.statuses() == {}
    here.fill("a", 5, first=15)
    assert far.count("b") == 15
    for command in ("delete_shovel", "restart_shovel"):
        with pytest.raises(AdminError, match="was not found on the target node"):
            call(command, vhost="/", name="s")


def test_a_shovel_that_cannot_run_says_why_and_when_it_tries_again(here: Site, far: Site) -> None:
    wrong = far.url.replace("guest:guest", "guest:secret")
    here.shovel("login", src_uri=DIRECT, src_queue="a", dest_uri=wrong, dest_queue="b")
    here.shovel("port", src_uri="amqp://127.0.0.1:1", src_queue="a", dest_uri=DIRECT, dest_queue="b")
    here.shovel("vhost", src_uri="amqp:///none", src_queue="a", dest_uri=DIRECT, dest_queue="b")
    here.shovel("exchange", src_uri=DIRECT, src_queue="a", dest_uri=DIRECT, dest_exchange="none")
    here.shovel("once", src_uri="amqp://127.0.0.1:1", src_queue="a", dest_uri=DIRECT, reconnect_delay=0)
    names = ("login", "port", "vhost", "exchange", "once")
    until(lambda: all(here.statuses()[name]["state"] == "terminated" for name in names), "it to be so")
    found = here.statuses()
    assert "ACCESS_REFUSED" in found["login"]["reason"] and "secret" not in str(found)
    assert found["port"]["reason"] == "source amqp://127.0.0.1:1: Connection refused"
    assert "vhost none not found" in found["vhost"]["reason"]
    assert "404 NOT_FOUND - no exchange 'none'" in found["exchange"]["reason"]
    assert all(found[name]["next_attempt"] for name in names if name != "once")
    assert found["once"]["next_attempt"] is None
    for name in names:  # Each can be deleted in any state.
        here.broker.admin.call("delete_shovel", vhost="/", name=name)


def test_a_lost_far_broker_comes_back(here: Site, far: Site) -> None:
    here.fill(here.queue("a"), 10)
    here.shovel("s", src_uri=DIRECT, src_queue="a", dest_uri=far.url, dest_queue="b", reconnect_delay=0.1)
    until(lambda: far.count("b") == 10, "it to be so")
    far.broker.restart()
    here.fill("a", 10, first=10)
    until(lambda: far.broker.is_running and far.count("b") == 20, "it to be so")
    until(lambda: here.statuses()["s"]["forwarded"] >= 20, "all to be confirmed")


def test_a_destination_queue_that_is_deleted_loses_nothing(here: Site, far: Site) -> None:
    here.fill(here.queue("a"), 5)
    here.shovel("s", src_uri=DIRECT, src_queue="a", dest_uri=far.url, dest_queue="b", reconnect_delay=0.1)
    until(lambda: far.count("b") == 5, "it to be so")
    far.channel.queue_delete("b")
    here.fill("a", 5, first=5)
    until(lambda: far.count("b") == 5, "it to be so")


def test_a_full_destination_is_waited_for(here: Site, far: Site) -> None:
    far.queue("b", **{"x-max-length": 3, "x-overflow": "reject-publish"})
    bodies = here.fill(here.queue("a"), 8)
    here.shovel("s", src_uri=DIRECT, src_queue="a", dest_uri=far.url, dest_queue="b")
    got: list[bytes] = []

    def has_all() -> bool:
        got.extend(far.take("b"))
        return len(got) == 8

    until(has_all, "all to arrive")
    assert sorted(got) == sorted(bodies)


def test_the_rights_of_the_user_who_set_it(here: Site) -> None:
    here.broker.admin.add_user("ann", "x", tags=["policymaker"])
    here.queue("a")
    value: Json = {"src-uri": DIRECT, "src-queue": "a", "dest-uri": DIRECT, "dest-queue": "b"}
    here.broker.admin.set_permissions("ann", configure="^$", write="^$", read="^a$")
    propose(here, SetParameter("shovel", "/", "s", value, "ann"))
    until(lambda: here.statuses()["s"]["state"] == "terminated", "it to be so")
    assert "refused for user 'ann'" in here.statuses()["s"]["reason"]


def propose(site: Site, command: Any) -> None:
    """Have a broker in this process agree on a command."""
    runner: Any = site.broker._running()
    done = asyncio.run_coroutine_threadsafe(runner._server.node.cluster.change(command), runner._loop)
    assert done.result(10).refused is None


def test_moving_messages(here: Site, far: Site) -> None:
    call = here.broker.admin.call
    bodies = here.fill(here.queue("a"), 30)
    here.queue("b")
    assert call("move_messages", vhost="/", queue="a", to="b") == {"forwarded": 30}
    assert call("move_messages", vhost="/", queue="b", to="c", uri=far.url, count=10) == {"forwarded": 10}
    assert (here.take("b"), far.take("c")) == (bodies[10:], bodies[:10])
    with pytest.raises(AdminError, match="not there"):
        call("move_messages", vhost="/", queue="a", to="none")
    with pytest.raises(AdminError, match="itself"):
        call("move_messages", vhost="/", queue="a", to="a")
    assert here.statuses() == {}
