"""The node that owns a queue is short of memory or disk: publishers at other nodes wait too, and nothing is lost."""

from __future__ import annotations

import contextlib
import threading

import pika

from tests.support.consumer import Consumer, fill, numbers
from tests.support.members import StartCluster
from tests.support.servers import until

MIB = 1 << 20
BODY = bytes(100_000)
COUNT = 1_500  # 150 MB: more than what may be on the way or in memory anywhere.


def test_memory_at_the_home(start_cluster: StartCluster) -> None:
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
        with contextlib.suppress(pika.exceptions.AMQPError):  # The test failed, and its nodes are gone.
            for number in range(COUNT):
                channel.basic_publish("", "q", b"%06d" % number + BODY)
                sent.append(number)
            channel.queue_declare("done")

    thread = threading.Thread(target=publish)
    thread.start()
    until(lambda: "memory resource limit alarm set on node" in home.log(), "the alarm")
    until(lambda: is_still(sent), "the publisher waits")
    assert len(sent) < COUNT
    assert edge.resident_bytes() < idle + 60 * MIB
    reader = home.channel()
    reader.basic_qos(prefetch_count=100)
    consumer = Consumer(reader, "q")
    for number in range(COUNT):
        ((method, _, body),) = consumer.take(1)
        assert body[:6] == b"%06d" % number
        if number % 20 == 19:
            reader.basic_ack(method.delivery_tag, multiple=True)
    thread.join()
    assert edge.resident_bytes() < idle + 80 * MIB


def is_still(sent: list[int], pause: threading.Event = threading.Event()) -> bool:  # noqa: B008
    before = len(sent)
    pause.wait(0.5)
    return len(sent) == before


def test_disk_at_another_node(start_cluster: StartCluster) -> None:
    """As in RabbitMQ an alarm is all nodes' business: who publishes is told, wherever; who consumes goes on."""
    # Of two nodes, the one that is left would else pause.
    configs = {0: "memory_monitor_interval = 50ms"}
    nodes = start_cluster("cluster_partition_handling = ignore", size=2, configs=configs)
    short, other = nodes
    channel = other.channel(confirms=True)
    channel.queue_declare("q", durable=True)
    fill(channel, "q", range(10))
    short.stop()
    short.config += "\ndisk_free_limit.absolute = 1000TB\n"
    nodes.start()
    until(lambda: other.status()["alarms"], "the alarm is known")

    connection = other.connect()
    told: list[str] = []
    connection.add_on_connection_blocked_callback(lambda _, frame: told.append(frame.method.reason))
    connection.add_on_connection_unblocked_callback(lambda _, frame: told.append("go on"))
    publisher = connection.channel()
    publisher.basic_publish("", "q", b"10")
    until(lambda: connection.process_data_events(0.05) or told, "the publisher is told")
    assert told == ["low on disk"]
    assert Consumer(other.channel(), "q").bodies(10) == numbers(*range(10))
    short.kill()
    until(lambda: connection.process_data_events(0.05) or len(told) == 2, "an alarm ends with its node")
    assert told == ["low on disk", "go on"]
    publisher.confirm_delivery()
    publisher.basic_publish("", "q", b"11")
