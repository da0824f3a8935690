"""Streams, as pika sees them; and what is left of them when the server was killed."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pika
import pytest

from tests.support.consumer import Consumer, fill
from tests.system.conftest import Start

STREAM = {"x-queue-type": "stream"}


def reader(server: Any, offset: Any, prefetch: int = 1000) -> Consumer:
    channel = server.channel()
    channel.basic_qos(prefetch_count=prefetch)
    return Consumer(channel, "s", arguments={"x-stream-offset": offset})


def read(there: Consumer, count: int) -> list[tuple[int, bytes]]:
    return [(properties.headers["x-stream-offset"], body) for _, properties, body in there.take(count)]


def first_offset(server: Any) -> int:
    return read(reader(server, "first"), 1)[0][0]


def numbered(*wanted: int) -> list[tuple[int, bytes]]:
    return [(number, b"%d" % number) for number in wanted]


def test_a_stream_is_there_after_a_crash(start: Start) -> None:
    server = start()
    channel = server.channel(confirms=True)
    arguments = {**STREAM, "x-max-length-bytes": 4_000, "x-stream-max-segment-size-bytes": 1_000}
    channel.queue_declare("s", durable=True, arguments=arguments)
    fill(channel, "s", range(60), properties=pika.BasicProperties(delivery_mode=1))
    slow = reader(server, "first", prefetch=10)
    assert read(slow, 10) == numbered(*range(10))
    fill(channel, "s", range(60, 200))
    before = first_offset(server)
    assert before > 0  # There was no room for all of them.
    server.kill()
    server.start()
    first = first_offset(server)
    assert 0 < first <= before  # What was given up last, the disk may not know.
    for offset, wanted in ((150, 150), ("first", first), (datetime(2020, 1, 1), first), ("1h", first), ("last", 199)):
        assert read(reader(server, offset), 200 - wanted) == numbered(*range(wanted, 200))
    following = reader(server, "next")
    fill(server.channel(confirms=True), "s", range(200, 400))
    assert read(following, 200) == numbered(*range(200, 400))
    assert first_offset(server) > 200  # What came before the crash goes as what came after it.


@pytest.mark.parametrize("offset", ["2", "0s", "1x"])
def test_an_offset_that_is_none(channel: Any, name: str, offset: str) -> None:
    channel.queue_declare(name, durable=True, arguments=STREAM)
    channel.basic_qos(prefetch_count=1)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.basic_consume(name, lambda *_: None, arguments={"x-stream-offset": offset})
    assert caught.value.reply_text == (
        f"PRECONDITION_FAILED - invalid arg 'x-stream-offset' for queue '{name}' in vhost '/': "
        f'{{invalid_stream_offset_arg,{{longstr,<<"{offset}">>}}}}'
    )
