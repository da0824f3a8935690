"""Frames between nodes, mutated: what a member of the cluster says is understood, or is a `BadFrame`.

An input is a list of frames, each with its kind (one byte) and length (two). Clients of both nodes publish, consume and
ask meanwhile. Afterwards the session ends and a new one begins; then no client is held for ever, no message is out with
nobody, and when the queues are deleted nothing is left in memory.

What is in a message is not looked into here: it was checked where it came into the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, cast

from leveret.broker.remote import peer_frames as w
from leveret.broker.routing.reply_address import ADDRESS
from leveret.links import frame_types
from leveret.links.proposals import BadFrame, Proposals
from leveret.metadata.command_codec import encode_command
from leveret.metadata.model import commands as c
from leveret.metadata.store import Applied
from leveret.protocol import methods as m
from leveret.protocol.frames import content
from leveret.protocol.properties import Properties, encode
from leveret.raft import Raft
from tests.support.brokers import Cluster
from tests.support.machines import Client, publish
from tests.system.fuzz.fuzzer import Target


def packed(sent: list[tuple[int, bytes]]) -> bytes:
    return b"".join(bytes((kind,)) + len(payload).to_bytes(2, "big") + payload for kind, payload in sent)


def unpacked(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= 3:
        size = int.from_bytes(data[1:3], "big")
        yield data[0], data[3 : 3 + size]
        data = data[3 + size :]


class Session:
    """A client at each of two nodes, with something in every state: out, asked, subscribed, waiting for a confirm."""

    def __init__(self) -> None:
        self.cluster = cluster = Cluster("a", "b", home="b")
        self.client, self.other = cluster["a"].client(channels=(1, 2)), cluster["b"].client()
        self.other.feed(_said(m.BasicConsume(queue=ADDRESS, no_ack=True)))
        self.client.feed(_said(m.QueueDeclare(queue="q", durable=True), m.QueueDeclare(queue="t"), m.ConfirmSelect()))
        cluster.run()
        self.client.feed(_said(m.BasicConsume(queue="q", consumer_tag="c"), m.BasicQos(prefetch_count=1)))
        self.client.feed(publish(1, "", "q", b"1", delivery_mode=2) * 2 + publish(1, "", "t", b"2") * 2)
        cluster.run()
        self.client.take()

    def go_on(self) -> None:
        self.client.feed(_said(m.BasicAck(1)) + publish(1, "", "q", b"3", delivery_mode=2))
        self.client.feed(_said(m.BasicGet(queue="t")) + _said(m.QueuePurge(queue="t"), m.BasicCancel("c")))
        self.other.feed(publish(1, "", "q", b"4"))

    def finish(self) -> None:
        """The session ends with the frame at fault, or later; another one begins."""
        cluster = self.cluster
        cluster.held.clear()
        cluster["a"].clients.clear()  # Nobody reads what came of it: it may be no AMQP.
        cluster["b"].clients.clear()
        for _ in range(2):
            cluster.close("a", "b")
            cluster.join("a", "b")
            cluster.run()
        for client in (self.client, self.other):
            assert not client.connection.waits, "it is held for ever"
            client.connection.on_socket_lost()
        cluster.run()
        cluster.finish()


def _said(*methods: m.Method) -> bytes:
    return b"".join(m.encode(1, method) for method in methods)


def run_home(data: bytes) -> None:
    """What an edge says to the home of a queue."""
    _run(data, "a", "b")


def run_edge(data: bytes) -> None:
    """What a home says to an edge. Its questions are on the way."""
    _run(data, "b", "a")


def _run(data: bytes, sender: str, receiver: str) -> None:
    session = Session()
    cluster = session.cluster
    cluster.hold(sender, receiver)
    session.go_on()
    cluster.run()
    try:
        for kind, payload in unpacked(data):
            cluster[receiver].broker.on_peer_frame(sender, kind, payload)
        for member in cluster.members.values():
            member.clients.clear()
        cluster.run()
    finally:
        session.finish()


class LoneLeader:
    """As much of a Raft as proposals want: it leads in term 3."""

    term, leader, is_leader = 3, "me", True

    def __init__(self) -> None:
        self.log: list[bytes] = []

    @property
    def last_index(self) -> int:
        return len(self.log)

    def propose(self, data: bytes) -> None:
        self.log.append(data)

    def applied_by(self, ids: object) -> int:
        return len(self.log)


def run_proposals(data: bytes) -> None:
    """Whatever gets into the log can be applied: an entry that cannot stops every node of the cluster."""
    raft = LoneLeader()
    applied: list[c.Command] = []

    def apply(command: c.Command) -> Applied:
        applied.append(command)
        return Applied(len(applied), None, ())

    proposals = Proposals(b"myorigin", cast(Raft, raft), lambda member, kind, payload: True, 10)
    proposals.propose(c.SetGlobalParameter("x", 1), lambda answer: None)
    try:
        for kind, payload in unpacked(data):
            proposals.on_frame("other", kind, payload)
    finally:
        for index, entry in enumerate(raft.log, 1):
            proposals.on_entry(index, 3, entry, apply)
        proposals.settle(["other"])
        assert len(applied) == len(raft.log)
        assert len(proposals.tell) <= 1


def _recorded() -> tuple[list[bytes], list[bytes]]:
    """What the nodes say to each other in a session like those above, in pieces."""
    session = Session()
    session.go_on()
    session.cluster.run()
    client: Client = session.client
    client.send(m.BasicNack(0, True, True), m.QueueDeclare(queue="t", passive=True), m.BasicGet(queue="t", no_ack=True))
    client.send(m.BasicQos(prefetch_count=2, global_=True), m.BasicConsume(queue="t", consumer_tag="d", no_ack=True))
    client.send(m.QueueDelete(queue="t"))
    both = [
        [(kind, payload) for by, _, kind, payload in session.cluster.frames if by == sender] for sender in ("a", "b")
    ]
    to_home, to_edge = [
        [packed(sent[at : at + size]) for at in range(len(sent)) for size in (1, 2, 4)] for sent in both
    ]
    key = [b"\0\x01t"]
    run = b"".join(w.pack_run([b"content"], key, b"\0"))
    to_edge += [
        packed([(frame_types.ANSWER, w.ANSWER_HEAD.pack(number, 0) + w.GET_ANSWER.pack(5, 6) + run)])
        for number in range(1, 9)
    ]
    to_edge += [packed([(frame_types.ANSWER, w.ANSWER_HEAD.pack(number, 404) + b"text")]) for number in range(1, 9)]
    to_edge.append(packed([(frame_types.SAFE, w.SAFE_ENTRY.pack(2, 1, 0)), (frame_types.CANCELLED, w.U64.pack(1))]))
    to_home.append(packed([(frame_types.STAGE, w.BUNDLE.pack(1, 1) + run + w.U32.pack(1) + w.TIME_ENTRY.pack(0, 7))]))
    index = w.U64.pack(1 << 40)
    to_home.append(packed([(frame_types.PUBLISH, index + w.BUNDLE.pack(1, 0) + run), (frame_types.SETTLE, b"")]))
    (address,) = [each.encode() for each in session.cluster["b"].broker.replies.inboxes]
    named = w.U16.pack(len(address)) + address
    reply = named + w.U16.pack(3) + key[0] + content(encode(Properties(), 1), b"1", 0)
    to_home.append(packed([(frame_types.REPLY, reply), (frame_types.REPLY_ASK, w.U64.pack(1) + named)]))
    to_home.append(packed([(frame_types.CONNECTION_COUNTS, b'{"uguest": 2}'), (frame_types.REPLY, reply)]))
    return to_home, to_edge


def _accepted(run: Callable[[bytes], None], data: bytes) -> bool:
    try:
        run(data)
    except BadFrame:
        return False
    return True


_TO_HOME, _TO_EDGE = _recorded()
# Numbers that only fit the session they were recorded in would make all that is made of them fail in the same way.
_TO_HOME = [data for data in _TO_HOME if _accepted(run_home, data)]
_TO_EDGE = [data for data in _TO_EDGE if _accepted(run_edge, data)]
_COMMANDS: Final[tuple[c.Command, ...]] = (
    c.SetGlobalParameter("x", [1, None, {"a": 1.5}]),
    c.DeclareQueue("/", "q"),
    c.Bind("/", "x", "queue", "q", "k", {}),
)
_FORWARDED: Final = [
    (frame_types.FORWARD, (3).to_bytes(8, "big") + b"origin.." + at.to_bytes(8, "big") + encode_command(command))
    for at, command in enumerate(_COMMANDS)
]
_NUMBERS: Final = [(kind, (1).to_bytes(8, "big")) for kind in (frame_types.BUSY, frame_types.WHEN, frame_types.SETTLED)]

PEER_TARGETS: Final = [
    Target("peer-home", run_home, _TO_HOME, (BadFrame,), cost=5),
    Target("peer-edge", run_edge, _TO_EDGE, (BadFrame,), cost=5),
    Target("proposals", run_proposals, [packed([one]) for one in (*_FORWARDED, *_NUMBERS)], (BadFrame,)),
]
