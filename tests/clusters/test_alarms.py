"""The node that owns a queue is short of memory or disk: publishers at other nodes wait too, and nothing is lost."""

from __future__ import annotations

import threading
from typing import Any

import pika
import pytest

from tests.clients.consumer import Consumer
from tests.members import StartCluster
from tests.servers import until

MIB = 1 << 20
BODY = bytes(100_000)
COUNT = 2_500  # 250 MB: more than what may be on the way or in memory anywhere.


@pytest.mark.parametrize("mode", [1, 2], ids=["transient", "persistent"])
def test_memory_at_the_home(start_cluster: StartCluster, mode: int) -> None:
    nodes = start_cluster(
        size=2,
        configs={
            0: "vm_memory_high_watermark.absolute = 120MB\nmemory_monitor_interval = 50ms\n"
            "vm_memory_high_watermark_paging_ratio = 1.0\ncontent_cache_bytes = 1GB\n"
        },
    )
    home, edge = nodes
    home.channel().queue_declare("q", durable=True)
    idle = edge.resident_bytes()
    connection = edge.connect()
    channel = connection.channel()
    sent: list[int] = []

    def publish() -> None:
        for number in range(COUNT):
            channel.basic_publish("", "q", b"%06d" % number + BODY, pika.BasicProperties(delivery_mode=mode))
            sent.append(number)
        channel.queue_declare("done")

    thread = threading.Thread(target=publish)
    thread.start()
    until(lambda: "alarm: low on memory" in home.log(), "the alarm")
    until(lambda: is_still(sent), "the publisher waits")
    assert len(sent) < COUNT
    assert edge.resident_bytes() < idle + 60 * MIB
    reader = home.channel()
    reader.basic_qos(prefetch_count=100)
    consumer = Consumer(reader, "q")
    for number in range(COUNT):
        ((method, _, body),) = consumer.take(1, 30)
        assert body[:6] == b"%06d" % number
        if number % 20 == 19:
            reader.basic_ack(method.delivery_tag, multiple=True)
    thread.join()
    assert edge.resident_bytes() < idle + 80 * MIB


def is_still(sent: list[int], pause: threading.Event = threading.Event()) -> bool:  # noqa: B008
    before = len(sent)
    pause.wait(0.5)
    return len(sent) == before


def test_disk_at_the_home(start_cluster: StartCluster) -> None:
    """A small window is taken, then its publishers wait; those who use the other node's own queues go on."""
    nodes = start_cluster(size=2, configs={0: "disk_free_limit.absolute = 1000TB"})
    home, edge = nodes
    home.channel().queue_declare("q", durable=True)
    waiting = edge.channel()
    sent: list[int] = []
    failed: list[Any] = []

    def publish() -> None:
        try:
            for number in range(COUNT):
                waiting.basic_publish("", "q", BODY)
                sent.append(number)
        except pika.exceptions.AMQPError as error:
            failed.append(error)

    thread = threading.Thread(target=publish)
    thread.start()
    until(lambda: sent and is_still(sent), "the publisher waits")
    assert len(sent) * len(BODY) < 64 * MIB
    channel = edge.channel(confirms=True)
    channel.queue_declare("own", durable=True)
    channel.basic_publish("", "own", b"x", pika.BasicProperties(delivery_mode=2))
    edge.kill()
    thread.join()
    assert failed
