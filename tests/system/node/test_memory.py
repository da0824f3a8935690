"""What the node says of its memory."""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from io import StringIO

from leveret.cli.ctl import main as ctl
from leveret.node.stats.memory import CHANNEL_BYTES, CONNECTION_BYTES, breakdown
from leveret.protocol import methods as m
from tests.support.control_world import cluster
from tests.support.raw import RawClient, publish_frames
from tests.support.servers import until
from tests.system.conftest import Start

MIB = 1 << 20


async def test_a_content_is_counted_once_for_all_its_queues() -> None:
    (server,) = cluster("n")
    node = server.node
    assert node is not None
    client = server.world.client()
    for number in range(20):
        client.declare(f"q{number}")
        client.call(m.QueueBind(queue=f"q{number}", exchange="amq.fanout"))
    client.publish("", b"x" * 100_000, exchange="amq.fanout")
    parts, used = await breakdown(node)  # type: ignore[arg-type]
    assert 100_000 < parts["binary"] < 102_000
    assert parts["mnesia"] > 20 * 500 and parts["queue_procs"] > 20 * 500
    assert used == 50 and parts["other_system"] == 0
    assert list(parts.values()) == sorted(parts.values(), reverse=True)


def test_most_of_the_memory_is_accounted_for(start: Start) -> None:
    server = start("content_cache_bytes = 1GiB\n")

    def told() -> dict[str, int]:
        address = ["--host", "127.0.0.1", "--port", str(server.cluster_port)]
        out = StringIO()
        with redirect_stdout(out):
            command = ["--cookie-file", str(server.data / "cookie"), "memory_breakdown", "--formatter", "json"]
            assert ctl.main(["--quiet", *address, *command]) == 0
        return {name: part["bytes"] for name, part in json.loads(out.getvalue()).items()}

    idle = told()
    assert idle["code"] > 10 * MIB
    assert idle["other"] < sum(idle.values()) / 3
    channel = server.channel()
    channel.queue_declare("q")
    with RawClient(server.port) as client:
        client.open()
        client.send(publish_frames("", "q", b"x" * 10_000, False) * 5_000)
        client.method(m.BasicQos())
        client.expect(m.BasicQosOk)
        full = told()
        assert full["binary"] > 5_000 * 10_000
        assert full["other"] < sum(full.values()) / 3
        assert full["connection_other"] >= CONNECTION_BYTES * 2 and full["connection_channels"] >= CHANNEL_BYTES * 2
    channel.queue_delete("q")
    until(lambda: sum(told().values()) < sum(full.values()) - 30 * MIB, "the memory is given back")
