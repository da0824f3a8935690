"""A producer of a real cluster whose nodes are killed: it sends whole batches again, and each message is there once."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from leveret.protocol import methods as m
from tests.support.members import Cluster, Member
from tests.support.raw import RawClient, publish_frames
from tests.system.mirrors.rings import await_in_sync, await_master, declare, drain, master_of, mirror

TOTAL = 4_000
BACK_MAX = 500


class Sending:
    """Messages 1 to `TOTAL`, whose bodies are their numbers, sent until all are confirmed."""

    def __init__(self, exchange: str, name: str) -> None:
        self.exchange = exchange
        self.name = name
        self.rng = random.Random(name)
        self.safe = 0
        self.connections = self.sent = 0

    def attempt(self, node: Member, through: int, then: Callable[[], object] | None = None) -> None:
        """Send all up to a number by a connection to this node, from some way back on. When half of it is under way,
        `then` something happens. Ends with the first refusal, with the connection, or when all is confirmed."""
        base = max(0, self.safe - self.rng.randrange(BACK_MAX))
        frames = [publish_frames(self.exchange, "", b"%d" % number, True) for number in range(base + 1, through + 1)]
        self.connections, self.sent = self.connections + 1, self.sent + len(frames)
        with RawClient(node.port) as client:
            client.open(leveret_producer=self.name, leveret_sequence=base)
            client.method(m.ConfirmSelect())
            client.expect(m.ConfirmSelectOk)
            half = len(frames) // 2
            client.send(b"".join(frames[:half]))
            try:
                if then is not None:
                    self._hear(client, base)
                    then()
                client.send(b"".join(frames[half:]))
                while self.safe < through and self._hear(client, base):
                    pass
            except (EOFError, ConnectionError):
                return  # It was killed.

    def _hear(self, client: RawClient, base: int) -> bool:
        """False: something was refused."""
        answer = client.receive()
        if isinstance(answer, m.BasicNack):
            return False
        assert isinstance(answer, m.BasicAck)
        # Nothing overtakes: all of them go the same way.
        assert answer.multiple or base + answer.delivery_tag <= self.safe + 1
        self.safe = max(self.safe, base + answer.delivery_tag)
        return True


@pytest.mark.parametrize("kind", ["classic", "stream"])
def test_the_master_is_killed_while_batches_are_sent_again(nodes: Cluster, name: str, kind: str) -> None:
    queues = (f"{name}-1", f"{name}-2")
    mirror(nodes[0], name)
    channel = nodes[0].channel()
    channel.exchange_declare(name, "fanout", durable=True)
    for queue, home in zip(queues, nodes, strict=False):
        declare(home, queue, arguments={"x-queue-type": kind} if kind == "stream" else None)
        channel.queue_bind(queue, name)
        await_in_sync(nodes[0], queue, nodes)
    sending = Sending(name, name)
    lost = nodes[0]
    others = nodes.others(lost)
    sending.attempt(others[1], TOTAL // 2, lost.kill)
    while sending.safe < TOTAL // 2:
        sending.attempt(sending.rng.choice(others), TOTAL // 2)
    nodes.start()
    for queue in queues:
        await_in_sync(others[0], queue, nodes)
    second = master_of(nodes, queues[0], others[0])
    sending.attempt(second, TOTAL, second.kill)
    rest = nodes.others(second)
    while sending.safe < TOTAL:
        sending.attempt(sending.rng.choice(rest), TOTAL)
    assert sending.connections >= 3 and sending.sent > TOTAL
    for queue in queues:
        await_master(rest[0], queue, rest)
        assert [int(body) for body in contents(rest[1], queue, kind)] == list(range(1, TOTAL + 1))


def contents(node: Member, queue: str, kind: str) -> list[bytes]:
    """All that is in a queue, in its order."""
    if kind == "classic":
        return [body for body, _ in drain(node, queue)]
    channel = node.channel()
    channel.basic_qos(prefetch_count=1_000)
    taken: list[bytes] = []
    for method, _, body in channel.consume(queue, arguments={"x-stream-offset": "first"}, inactivity_timeout=3):
        if method is None:
            break
        taken.append(body)
        channel.basic_ack(method.delivery_tag)
        if body == b"%d" % TOTAL:
            break
    channel.cancel()
    return taken
