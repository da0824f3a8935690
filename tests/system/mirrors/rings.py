"""Mirrored queues of a real cluster, as tests look at them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import pika

from leveret.protocol import methods as m
from leveret.protocol.frames import BODY, HEADER, frame
from tests.support.members import Cluster, Member
from tests.support.raw import RawClient
from tests.support.servers import PATIENCE_S, until

SYNC_S = PATIENCE_S
_NODE = re.compile(r"<(.+?)\.\d+\.\d+\.\d+>")
COLUMNS = ["name", "pid", "slave_pids", "synchronised_slave_pids", "messages"]


class Copies(NamedTuple):
    """Where a queue is: names of nodes."""

    master: str
    mirrors: frozenset[str]
    synchronised: frozenset[str]
    messages: Any


def mirror(node: Member, name: str, mode: str = "all", params: Any = None, **more: Any) -> None:
    """Have queues whose names begin like that mirrored. There is one such policy for each name."""
    definition = {"ha-mode": mode, "ha-sync-mode": "automatic", **more}
    if params is not None:
        definition["ha-params"] = params
    node.control(
        "set_policy", vhost="/", name=name, pattern=f"^{re.escape(name)}", definition=definition, priority=len(name),
        apply_to="classic_queues", operator=False,
    )  # fmt: skip


def unmirror(node: Member, name: str) -> None:
    node.control("clear_policy", vhost="/", name=name, operator=False)


def list_copies(node: Member) -> dict[str, Copies]:
    """All queues, as a node lists them."""
    found: dict[str, Copies] = {}
    after = None
    while True:
        answer = node.control("list_queues", vhost="/", columns=COLUMNS, after=after)
        for name, pid, mirrors, synchronised, messages in answer["rows"]:
            (master,) = _nodes(pid)
            found[name] = Copies(master, _nodes(mirrors), _nodes(synchronised), messages)
        after = answer["next"]
        if after is None:
            return found


def _nodes(pids: Any) -> frozenset[str]:
    return frozenset(_NODE.findall(pids if isinstance(pids, str) else " ".join(pids or ())))


def copies(node: Member, queue: str) -> Copies:
    return list_copies(node)[queue]


def master_of(nodes: Cluster, queue: str, asked: Member | None = None) -> Member:
    name = copies(asked or next(node for node in nodes if node.is_running and not node.frozen), queue).master
    return next(node for node in nodes if node.name == name)


def is_in_sync(asked: Member, queue: str, nodes: Iterable[Member]) -> bool:
    """Whether these nodes, and no others, have a copy, and each has all of it."""
    found = list_copies(asked).get(queue)
    names = frozenset(node.name for node in nodes)
    if found is None:
        return False
    return {found.master} | found.mirrors == names and {found.master} | found.synchronised == names


def await_in_sync(asked: Member, queue: str, nodes: Iterable[Member], seconds: float = SYNC_S) -> None:
    there = list(nodes)
    what = f"{queue} is in sync at {', '.join(node.name for node in there)}"
    try:
        until(lambda: is_in_sync(asked, queue, there), what, seconds)
    except AssertionError as error:
        raise AssertionError(f"{error}, but {list_copies(asked).get(queue)}") from None


def await_master(asked: Member, queue: str, wanted: Iterable[Member], seconds: float = PATIENCE_S) -> str:
    names = {node.name for node in wanted}
    until(lambda: copies(asked, queue).master in names, f"{queue} is led by one of {names}", seconds)
    return copies(asked, queue).master


def lead_by(nodes: Cluster, queue: str, wanted: Member) -> None:
    """Kill one master after the other until a certain node, whose copy is in sync, leads."""
    while True:
        master = master_of(nodes, queue, wanted)
        if master is wanted:
            return
        master.kill()
        await_master(wanted, queue, nodes.others(master))
        if master_of(nodes, queue, wanted) is not wanted:
            nodes.start()
            await_in_sync(wanted, queue, nodes)


def declare(node: Member, queue: str, durable: bool = True, **more: Any) -> None:
    node.channel().queue_declare(queue, durable=durable, **more)


def count(node: Member, queue: str) -> int:
    found: int = node.channel().queue_declare(queue, passive=True).method.message_count
    return found


def fill_fast(node: Member, queue: str, numbers: range, persistent: bool = True, padding: int = 0) -> None:
    """Publish numbers as bodies, with confirms, as fast as the node takes them; all are confirmed on return."""
    properties = b"\x10\x00\x02" if persistent else b"\x00\x00"
    method = m.encode(1, m.BasicPublish(routing_key=queue))
    pad = b" " * padding
    with RawClient(node.port, timeout_s=60.0) as client:
        client.open()
        client.method(m.ConfirmSelect())
        client.expect(m.ConfirmSelectOk)
        confirmed = sent = 0
        total = len(numbers)
        while confirmed < total:
            step = numbers[sent : sent + 2_000]
            if step and sent - confirmed < 10_000:
                parts = []
                for number in step:
                    body = b"%d" % number + pad
                    header = b"\x00\x3c\x00\x00" + len(body).to_bytes(8, "big") + properties
                    parts += [method, frame(HEADER, 1, header), frame(BODY, 1, body)]
                client.send(b"".join(parts))
                sent += len(step)
                continue
            answer = client.receive()
            assert isinstance(answer, m.BasicAck), answer
            confirmed = answer.delivery_tag if answer.multiple else confirmed + 1


def drain(node: Member, queue: str, seconds: float = 60.0) -> list[tuple[bytes, bool]]:
    """All messages that wait, acknowledged, each with its flag."""
    channel = node.channel()
    total = channel.queue_declare(queue, passive=True).method.message_count
    taken: list[tuple[bytes, bool]] = []

    def on_message(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        taken.append((body.strip(), method.redelivered))
        if len(taken) == total:
            channel.basic_ack(method.delivery_tag, multiple=True)

    if total:
        channel.basic_consume(queue, on_message)
    deadline = time.monotonic() + seconds
    while len(taken) < total:
        assert time.monotonic() < deadline, f"{len(taken)} of {total} after {seconds:g} s"
        channel.connection.process_data_events(0.1)
    channel.connection.close()
    return taken


def settle_durably(channel: Any, queue: str, tag: int) -> None:
    """Acknowledge all up to a tag, and wait until that is as safe as a confirmed message.

    An answer says that the acknowledgement has reached the master, and the confirm of a message that was published
    after that answer says that what came before it is on all disks. That message is taken out again.
    """
    channel.basic_ack(tag, multiple=True)
    channel.queue_declare(queue, passive=True)
    other = channel.connection.channel()
    other.confirm_delivery()
    other.basic_publish("", queue, b"fence", pika.BasicProperties(delivery_mode=2))
    other.close()
