"""The disk of a node that is alone stalls: whoever waits for it is refused in time, and everybody else is served."""

from __future__ import annotations

import sys
import threading

import pika
import pytest

from tests.system.conftest import Start

PERSISTENT = pika.BasicProperties(delivery_mode=2)
TICKS = "net_ticktime = 1"


def test_a_disk_that_stalls(start: Start) -> None:
    server = start(TICKS, begin=False)
    server.launcher = (sys.executable, "-m", "tests.support.faulty", str(server.folder))
    server.start()
    stall = server.folder / "stall-sync"
    try:
        channel = server.connect().channel()
        channel.queue_declare("durable", durable=True)
        channel.queue_declare("transient")
        channel.confirm_delivery()
        for _ in range(20):  # The disk is fast, so that the loop waits for the commit to come.
            channel.basic_publish("", "durable", b"before", PERSISTENT)
        other = server.connect().channel()
        stall.touch()
        refused: list[str] = []

        def publish() -> None:
            with pytest.raises(pika.exceptions.NackError):
                channel.basic_publish("", "durable", b"during", PERSISTENT)
            refused.append("during")

        publisher = threading.Thread(target=publish)
        publisher.start()
        for number in range(100):
            other.basic_publish("", "transient", b"%d" % number)
            assert other.basic_get("transient", auto_ack=True)[2] == b"%d" % number
        publisher.join()
        assert refused == ["during"] and stall.exists()
        stall.unlink()
        channel.basic_publish("", "durable", b"after", PERSISTENT)
        bodies = [other.basic_get("durable", auto_ack=True)[2] for _ in range(22)]
        # What was refused is in the log by now, for all that; it was never said that it is not.
        assert bodies == [b"before"] * 20 + [b"during", b"after"]
    finally:
        stall.unlink(missing_ok=True)
