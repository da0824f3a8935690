"""Federated queues: messages come when a consumer here has room and nothing waits here."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.servers import until
from tests.system.federation.conftest import Site


class Taker:
    """A consumer that keeps what it gets."""

    def __init__(self, site: Site, queue: str, prefetch: int = 0, **arguments: Any) -> None:
        self.site = site
        self.channel = site.connection.channel()
        self.channel.basic_qos(prefetch_count=prefetch)
        self.got: list[tuple[int, bytes, Any]] = []
        self.tag = self.channel.basic_consume(queue, self._on_message, arguments=arguments)

    def _on_message(self, _: Any, method: Any, properties: Any, body: bytes) -> None:
        self.got.append((method.delivery_tag, body, properties))

    def has(self, count: int) -> bool:
        self.site.connection.process_data_events(0.01)
        return len(self.got) >= count

    def ack(self) -> None:
        self.channel.basic_ack(0, multiple=True)

    def close(self) -> None:
        self.channel.close()


@pytest.fixture
def linked(down: Site, up: Site) -> tuple[Site, Site]:
    up.queue("q")
    down.queue("q")
    down.upstream("u", up.url)
    down.federate("^q$", "queues")
    down.until_runs()
    return down, up


def fill(site: Site, count: int, first: int = 0) -> list[bytes]:
    bodies = [b"%d" % number for number in range(first, first + count)]
    for body in bodies:
        site.publish("", "q", body)
    return bodies


def test_messages_stay_until_somebody_wants_them(linked: tuple[Site, Site]) -> None:
    down, up = linked
    (link,) = down.links()
    assert (link["queue"], link["upstream_queue"], link["type"]) == ("q", "q", "queue")
    assert link["consumer_tag"] == "federation-link-u"
    bodies = fill(up, 20)
    assert (up.count("q"), down.count("q")) == (20, 0)
    taker = Taker(down, "q")
    until(lambda: taker.has(20), "all to come")
    assert [body for _, body, _ in taker.got] == bodies
    headers = taker.got[0][2].headers
    (hop,) = headers["x-received-from"]
    assert (hop["queue"], hop["visit-count"], hop["redelivered"]) == ("q", 1, False)
    assert (headers["x-original-exchange"], headers["x-original-routing-key"]) == ("", "q")
    taker.ack()
    until(lambda: up.count("q") == 0, "acknowledgements")
    taker.close()
    until(lambda: up.broker.admin.queue("q").consumers == 0, "the link to pause")
    fill(up, 5, 100)
    assert up.count("q") == 5 and down.count("q") == 0


def test_what_waits_here_goes_first(down: Site, up: Site) -> None:
    up.queue("q")
    down.queue("q")
    fill(up, 10, 100)
    fill(down, 5)
    down.upstream("u", up.url, prefetch_count=2)
    down.federate("^q$", "queues")
    down.until_runs()
    taker = Taker(down, "q", prefetch=1)
    until(lambda: taker.has(1), "the first")
    assert up.count("q") == 10  # Messages wait here, and the consumer has no room.
    for number in range(1, 15):
        taker.ack()
        until(lambda number=number: taker.has(number + 1), "the next")  # type: ignore[misc]
    assert [body for _, body, _ in taker.got][:5] == [b"0", b"1", b"2", b"3", b"4"]
    assert sorted(int(body) for _, body, _ in taker.got) == [*range(5), *range(100, 110)]
    taker.close()


def test_consumers_there_are_served_first(linked: tuple[Site, Site]) -> None:
    down, up = linked
    there, here = Taker(up, "q"), Taker(down, "q")
    until(lambda: up.broker.admin.queue("q").consumers == 2, "both to consume")
    fill(up, 10)
    until(lambda: there.has(10), "all to stay")
    assert not here.has(1)
    for taker in (there, here):
        taker.close()


def test_both_ways_messages_go_where_the_consumer_is(linked: tuple[Site, Site]) -> None:
    down, up = linked
    up.upstream("u", down.url)
    up.federate("^q$", "queues")
    up.until_runs()
    for home, away in ((up, down), (down, up)):
        fill(home, 10)
        taker = Taker(away, "q")
        until(lambda taker=taker: taker.has(10), "all to come")  # type: ignore[misc]
        taker.ack()
        taker.close()
    until(lambda: up.count("q") + down.count("q") == 0, "no message to be left")
    up.clear()


def test_consumers_of_low_priority_do_not_count(linked: tuple[Site, Site]) -> None:
    down, up = linked
    fill(up, 3)
    low = Taker(down, "q", **{"x-priority": -1})
    assert not low.has(1)
    taker = Taker(down, "q")
    until(lambda: taker.has(1) or low.has(1), "messages")
    for one in (low, taker):
        one.close()


def test_a_queue_that_is_missing_upstream_and_a_deleted_one(down: Site, up: Site) -> None:
    down.channel.queue_declare("q", durable=True, arguments={"x-max-length": 100})
    down.upstream("u", up.url, queue="other")
    down.federate("^q$", "queues")
    down.until_runs()
    assert up.queues() == ["other"]
    down.channel.queue_delete("q")
    until(lambda: not down.links(), "the link to end")
    assert up.queues() == ["other"]


def test_connections_that_break_again_and_again_lose_and_double_nothing(linked: tuple[Site, Site]) -> None:
    down, up = linked
    taker = Taker(down, "q")
    sent = 0
    for _ in range(5):
        sent += len(fill(up, 100, sent))
        up.broker.admin.close_clients(["Leveret"])
    until(lambda: taker.has(sent), "all")
    taker.ack()
    until(lambda: up.count("q") == 0 and down.count("q") == 0, "nothing to be left")
    assert sorted(int(body) for _, body, _ in taker.got) == list(range(sent))
    taker.close()
