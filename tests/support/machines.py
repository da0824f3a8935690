"""A node without a world: the machines on a shell that a test plays with, and clients joined to them by bytes.

`World` is a broker whose shell answers at once, unless a test says otherwise: `holds_metadata` keeps proposals back,
`holds_disk` keeps written blocks from being durable, `holds_loads` keeps reads back. `Client` speaks to a `Connection`
in bytes both ways and understands whole methods and contents, so a test sees what a client would see.

`converse` runs a conversation written as text, so that a person can read it and a real server can be asked the same:

    a1 queue.declare queue='q' durable
        < a1 queue.declare_ok queue='q' message_count=0 consumer_count=0

Lines at the margin are what clients send: the connection's letter and the channel, then a method. Indented lines are
all that comes back before the next line is sent. A connection opens itself and channel 1 when it is first named,
unless its first line is `a connect`. Besides methods there are

    a1 publish exchange='x' routing_key='k' body='abc' properties={'delivery_mode': 2}    method, header and body
    a1 header size=3                                                                      piece by piece
    a1 body 'abc'
    a1 body 4096                                                                          so many zeros
    a0 heartbeat
    a frame 1, 0, b'payload'                                                              any frame: type, channel
    a bytes b'AMQP'                                                                       any bytes
    a lost                                                                                the socket is gone
    a1 publish routing_key='q' body='x' && a1 basic.get queue='q'                         both in one write

Names that the server makes up are numbered as they come; an address for replies can be used by its number. A `#` starts
a comment, a line that starts with `=` a new conversation. Names begin with `m-`, so that the server that
is asked the same may have other users.
"""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from leveret.base.range_set import Measured, Wanted
from leveret.broker.broker import Broker
from leveret.broker.client_connection import Sent
from leveret.broker.delivery.batch import GapRead
from leveret.broker.kinds.stream import StreamQueue
from leveret.broker.mirrors.copy_store import Loading
from leveret.broker.queue.local_queue import LocalQueue
from leveret.broker.queue.queue import Queue
from leveret.metadata.defaults import first_boot
from leveret.metadata.model import commands as c
from leveret.metadata.store import Applied, Metadata
from leveret.protocol import methods as m
from leveret.protocol.frames import BODY, HEAD, HEADER, HEARTBEAT, METHOD, PROTOCOL_HEADER, frame
from leveret.protocol.properties import Properties, decode, encode
from leveret.protocol.tables import Field, Table, from_python, table_from_python, to_python
from leveret.sessions.amqp.connection import Connection
from leveret.sessions.amqp.limits import Limits
from leveret.sessions.peer import Peer
from leveret.storage.format.queue_block import PERSISTENT, REDELIVERED, Block, Run

LOOPBACK: Final = Peer("127.0.0.1", 40_000, "127.0.0.1", 5672, True)
ALL_CAPABILITIES: Final = {
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}
UNLIMITED: Final = 1 << 40
NODE: Final = "node"


# -- The other side of the shell -----------------------------------------------------------------------------------


class MemoryLog:
    """The contents of a log: live messages by queue and number."""

    def __init__(self) -> None:
        self.queues: dict[int, dict[int, tuple[bytes, bytes, int]]] = {}
        self.times: dict[tuple[int, int], int] = {}  # By queue and number, where known.

    def append(self, block: Block) -> None:
        kept = self.queues.setdefault(block.queue, {})
        if block.enqueued is not None:
            self.put(block.queue, block.enqueued, PERSISTENT)
        for first, last in block.requeued:
            for seq in range(first, last + 1):
                if seq in kept:
                    content, key, kind = kept[seq]
                    kept[seq] = (content, key, kind | REDELIVERED)
        for first, last in block.settled:
            for seq in range(first, last + 1):
                kept.pop(seq, None)

    def put(self, queue: int, run: Run, wanted: int = 0) -> None:
        kept = self.queues.setdefault(queue, {})
        for at, (content, key, kind) in enumerate(zip(run.contents, run.keys, run.kinds, strict=True)):
            if kind & wanted == wanted:
                kept[run.first + at] = (content, key, kind)
                if run.times:
                    self.times[queue, run.first + at] = [time for start, time in run.times if start <= at][-1]

    def read(self, queue: int, first: int, last: int, messages_max: int) -> tuple[list[Run], int]:
        """Returns live messages within the bounds, in runs, and the number to continue with."""
        live = sorted(seq for seq in self.queues.get(queue, {}) if first <= seq <= last)
        taken = live[:messages_max]
        runs: list[Run] = []
        for seq in taken:
            content, key, kind = self.queues[queue][seq]
            if not runs or runs[-1].last + 1 != seq:
                runs.append(Run(seq, [], [], bytearray()))
            if (queue, seq) in self.times:
                runs[-1].times.append((len(runs[-1].contents), self.times[queue, seq]))
            runs[-1].contents.append(content)
            runs[-1].keys.append(key)
            runs[-1].kinds.append(kind)
        return runs, (live[messages_max] if len(live) > messages_max else last + 1)

    def measure(self, queue: int, wanted: Wanted) -> Measured:
        first, last, count_max, bytes_max, among, ranges_max = wanted
        found: list[tuple[int, int]] = []
        size = 0
        for seq in sorted(self.queues.get(queue, {})):
            if not first <= seq <= last or (among is not None and seq not in among):
                continue
            touches = bool(found) and found[-1][1] + 1 == seq
            if not count_max or (found and size >= bytes_max) or (len(found) >= ranges_max and not touches):
                break
            found = [*found[:-1], (found[-1][0], seq)] if touches else [*found, (seq, seq)]
            size += len(self.queues[queue][seq][0])
            count_max -= 1
        return Measured(found, size)


class World:
    """One node: the broker, and the node interface it uses."""

    def __init__(
        self,
        limits: Limits | None = None,
        content_bytes_max: int = UNLIMITED,
        spill_bytes_max: int = UNLIMITED,
        name: str = NODE,
    ) -> None:
        self.limits = limits or Limits()
        self.metadata = Metadata()
        for command in first_boot(b"salt"):
            self.metadata.apply(command)
        self.broker = Broker(self.metadata, self, name, "cluster", "3.11", content_bytes_max, spill_bytes_max)
        self.log = MemoryLog()
        self.settled: dict[int, list[tuple[int, int]]] = {}  # By queue: ranges that an earlier log says are settled.
        self.clients: dict[Sent, Any] = {}  # Of all protocols.
        self.notes: list[tuple[str, str, str]] = []
        self.forgotten: list[LocalQueue] = []
        self.blocks: list[Block] = []  # Taken, not durable yet.
        self.names = 0
        self.holds_metadata = self.holds_disk = self.holds_loads = False
        self.crowded = False  # Too much waits for the disk.
        self.proposals: list[tuple[c.Command, Callable[[Applied], None]]] = []
        self.loads: list[tuple[Queue, GapRead]] = []
        self.ranges: list[tuple[int, int, int, Callable[[list[Run] | None, int], None]]] = []  # Requested reads.
        self.load_messages_max = 1000
        self._awaiting: list[Any] = []
        self._logged: list[tuple[LocalQueue, Block]] = []

    # What the broker asks of its node.

    def propose(self, command: c.Command, then: Callable[[Applied], None], patient: bool = False) -> None:
        if self.holds_metadata:
            self.proposals.append((command, then))
        else:
            self.apply(command, then)

    def propose_for(self, client: str, command: c.Command, then: Callable[[Applied], None]) -> None:
        self.propose(command, then)

    def adopt(self, queue: LocalQueue) -> None:
        pass  # Nothing survives a restart here.

    def counts_of(self, number: int) -> dict[int, int]:
        return {}

    def settled_of(self, number: int) -> list[tuple[int, int]]:
        return self.settled.get(number, [])

    def measure(self, number: int, wanted: Wanted) -> Measured:
        return self.log.measure(number, wanted)

    def forget_log(self, number: int) -> None:
        self.log.queues.pop(number, None)

    def read(self, job: Loading, then: Callable[[bool], None]) -> None:
        raise AssertionError("there is no mirror")

    def is_crowded(self) -> bool:
        return self.crowded

    def send(self, peer: str, kind: int, parts: list[bytes]) -> None:
        raise AssertionError("there is no other node")

    def is_writable(self, peer: str) -> bool:
        raise AssertionError("there is no other node")

    def cut(self, peer: str, reason: str) -> None:
        raise AssertionError("there is no other node")

    def load(self, queue: Queue, read: GapRead) -> None:
        self.loads.append((queue, read))
        if not self.holds_loads:
            self._may_load = True

    def read_range(
        self, queue: int, first: int, last: int, bytes_max: int, then: Callable[[list[Run] | None, int], None]
    ) -> None:
        self.ranges.append((queue, first, last, then))

    def read_kind(self, queue: LocalQueue, number: int, then: Callable[[int], None]) -> None:
        runs, _ = self.log.read(queue.spec.id, number, number, 1)
        if runs:
            then(runs[0].kinds[0])

    def spill(self, queue: LocalQueue, runs: list[Run]) -> None:
        for run in runs:
            self.log.put(queue.spec.id, run)

    def forget(self, queue: LocalQueue) -> None:
        self.forgotten.append(queue)
        self.log.queues.pop(queue.spec.id, None)

    def unique_name(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names:022}"

    def seed(self) -> int:
        return 1

    def note(self, category: str, level: str, text: str) -> None:
        self.notes.append((category, level, text))

    # What a test does.

    def apply(self, command: c.Command, then: Callable[[Applied], None] = lambda applied: None) -> Applied:
        applied = self.metadata.apply(command)
        self.broker.on_applied(applied.events)
        then(applied)
        return applied

    def release_metadata(self) -> None:
        self.holds_metadata = False
        proposals, self.proposals = self.proposals, []
        for command, then in proposals:
            self.apply(command, then)

    def finish_loads(self) -> None:
        loads, self.loads = self.loads, []
        for queue, read in loads:
            runs, after = self.log.read(queue.spec.id, read.first, read.last, self.load_messages_max)
            queue.on_loaded(read, runs, after)
            self.broker.on_loaded(queue)
        ranges, self.ranges = self.ranges, []
        for number, first, last, then in ranges:
            then(*self.log.read(number, first, last, self.load_messages_max))

    def sync(self) -> None:
        """Makes all blocks taken so far durable."""
        self.blocks.clear()
        logged, self._logged = self._logged, []
        awaiting, self._awaiting = self._awaiting, []
        for queue, block in logged:
            if block.enqueued is not None and not queue.deleted:
                queue.on_logged(block.enqueued)  # type: ignore[arg-type]
        for pending in awaiting:
            pending.on_safe()
        self.broker.tell_confirms()

    def turn(self) -> None:
        """Does what a node does after connections received something, until nothing is left to do."""
        broker = self.broker
        while True:
            broker.pump()
            broker.flush_links()
            for queue in broker.unlogged:
                block = queue.take_block(broker.wall_ms)
                if block is not None:
                    self.log.append(block)
                    self.blocks.append(block)
                    self._logged.append((queue, block))
                self._awaiting += queue.awaiting
                queue.awaiting = []
            broker.unlogged.clear()
            if not self.holds_disk:
                self.sync()
            broker.tell_confirms()
            broker.grant()
            writers, broker.writers = broker.writers, {}
            for output in writers:
                client = self.clients.get(output)
                if client is not None:
                    client.flush()
            if (self.loads or self.ranges) and not self.holds_loads:
                self.finish_loads()
            elif not (broker.dirty or broker.going_on or broker.writers or broker.linked):
                if (self.crowded or not broker.is_spreading) and not broker.subscribing.waiting:
                    return

    def queue(self, name: str) -> Queue:
        queue = self.broker.vhosts["/"].queues[name]
        assert isinstance(queue, Queue)
        return queue

    def stream(self, name: str) -> StreamQueue:
        queue = self.broker.vhosts["/"].queues[name]
        assert isinstance(queue, StreamQueue)
        return queue

    def client(self, **options: Any) -> Client:
        """Returns a client with channel 1 open; see `Client.open`."""
        client = Client(self)
        client.open(**options)
        return client


# -- Clients -------------------------------------------------------------------------------------------------------


class Reply(NamedTuple):
    """A method from the server, with its content if it has one. A heartbeat has no method."""

    channel: int
    method: m.Method | None
    properties: Properties | None = None
    body: bytes = b""

    def __str__(self) -> str:
        if self.method is None:
            return f"{self.channel} heartbeat"
        text = f"{self.channel} {printed(self.method)}"
        if self.properties is not None:
            shown = {each.name: getattr(self.properties, each.name) for each in fields(Properties)}
            given = {name: value for name, value in shown.items() if value is not None}
            if "headers" in given:
                given["headers"] = to_python(given["headers"])
            text += f" properties={given}" if given else ""
            text += f" body={short(self.body)}"
        return text


def short(body: bytes) -> str:
    return repr(body) if len(body) <= 60 else f"{len(body)} bytes"


class Reader:
    """Assembles what a server sends, and is strict about it."""

    def __init__(self) -> None:
        self.frame_max = 1 << 32
        self.data = b""
        self.greeting = b""  # An answer that is not a frame.
        self.largest_frame = 0
        self.unfinished: dict[int, tuple[m.Method, bytes, bytes]] = {}

    def feed(self, data: bytes) -> Iterator[Reply]:
        data, at = self.data + data, 0
        if data.startswith(b"AMQP"):
            self.greeting, self.data = data, b""
            return
        while len(data) - at >= 8:
            kind, channel, size = HEAD.unpack_from(data, at)
            end = at + size + 8
            assert size + 8 <= self.frame_max, f"frame of {size + 8} bytes"
            if end > len(data):
                break
            assert data[end - 1] == 0xCE
            self.largest_frame = max(self.largest_frame, size + 8)
            reply = self._frame(kind, channel, data[at + 7 : end - 1])
            if reply is not None:
                yield reply
            at = end
        self.data = data[at:]

    def _frame(self, kind: int, channel: int, payload: bytes) -> Reply | None:
        if kind == HEARTBEAT:
            assert channel == 0 and not payload
            return Reply(0, None)
        if kind == METHOD:
            assert channel not in self.unfinished, "a method within a content"
            method = m.decode_payload(payload)
            assert method.sender != "client"
            if method.has_content:
                self.unfinished[channel] = (method, b"", b"")
                return None
            return Reply(channel, method)
        method, header, body = self.unfinished[channel]
        if kind == HEADER:
            assert not header
            header = payload
        else:
            assert kind == BODY and header and payload
            body += payload
        self.unfinished[channel] = (method, header, body)
        if len(body) < int.from_bytes(header[4:12], "big"):
            return None
        del self.unfinished[channel]
        assert len(body) == int.from_bytes(header[4:12], "big")
        return Reply(channel, method, decode(header), body)


class Client:
    """A client, connected to a connection machine by bytes."""

    def __init__(self, world: World, peer: Peer = LOOPBACK) -> None:
        self.world = world
        self.connection = Connection(world.broker, peer, world.limits)
        world.clients[self.connection.output] = self
        self.reader = Reader()
        self.replies: list[Reply] = []

    # Sending.

    def feed(self, data: bytes) -> None:
        """Hands bytes to the machine, without a turn of the world."""
        self.connection.receive(data)

    def send(self, *methods: m.Method, channel: int = 1) -> None:
        self.feed(b"".join(m.encode(channel, method) for method in methods))
        self.world.turn()

    def call(self, method: m.Method, channel: int = 1) -> m.Method:
        """Sends a method and returns its answer, which must be all that arrives."""
        self.send(method, channel=channel)
        (reply,) = self.take()
        assert reply.channel == channel and reply.method is not None
        return reply.method

    def publish(self, key: str, body: bytes = b"x", exchange: str = "", channel: int = 1, **properties: Any) -> None:
        self.feed(publish(channel, exchange, key, body, self.frame_max, **properties))
        self.world.turn()

    @property
    def frame_max(self) -> int:
        return self.connection.frame_max

    # Receiving.

    def flush(self) -> None:
        connection = self.connection
        data = b"".join(connection.output.take())
        self.replies += self.reader.feed(data)
        if connection.output.is_writable:
            connection.on_room()

    def take(self) -> list[Reply]:
        """Returns everything that arrived since the last call."""
        taken, self.replies = self.replies, []
        return taken

    def methods(self) -> list[m.Method | None]:
        return [reply.method for reply in self.take()]

    def bodies(self) -> list[bytes]:
        return [reply.body for reply in self.take() if reply.properties is not None]

    # Usual beginnings of a session.

    def open(
        self,
        user: str = "guest",
        password: str = "guest",
        vhost: str = "/",
        capabilities: dict[str, bool] = ALL_CAPABILITIES,
        frame_max: int = 131_072,
        channel_max: int = 2047,
        heartbeat: int = 0,
        channels: tuple[int, ...] = (1,),
        **properties: Any,
    ) -> None:
        """Opens a connection and channel 1. `properties` are further client properties."""
        self.feed(hello(user, password, vhost, capabilities, frame_max, channel_max, heartbeat, channels, properties))
        self.world.turn()
        names = [type(method).__name__ for method in self.methods()]
        assert names == ["ConnectionStart", "ConnectionTune", "ConnectionOpenOk"] + ["ChannelOpenOk"] * len(channels)
        self.reader.frame_max = frame_max or 1 << 32

    def declare(self, name: str, **options: Any) -> None:
        assert isinstance(self.call(m.QueueDeclare(queue=name, **options)), m.QueueDeclareOk)

    def consume(self, queue: str, tag: str = "c", channel: int = 1, **options: Any) -> None:
        self.send(m.BasicConsume(queue=queue, consumer_tag=tag, **options), channel=channel)
        first = self.replies.pop(0)
        assert isinstance(first.method, m.BasicConsumeOk)

    def lose(self) -> None:
        self.connection.on_socket_lost()
        self.world.turn()


def hello(
    user: str,
    password: str,
    vhost: str,
    capabilities: dict[str, bool],
    frame_max: int,
    channel_max: int,
    heartbeat: int,
    channels: tuple[int, ...],
    more: dict[str, Any] | None = None,
) -> bytes:
    """Returns everything that a client sends until its channels are open. It need not wait for the answers."""
    properties: Table = table_from_python({"product": "test", "capabilities": dict(capabilities), **(more or {})})
    response = b"\0" + user.encode() + b"\0" + password.encode()
    return PROTOCOL_HEADER + b"".join(
        [
            m.encode(0, m.ConnectionStartOk(properties, "PLAIN", response, "en_US")),
            m.encode(0, m.ConnectionTuneOk(channel_max, frame_max, heartbeat)),
            m.encode(0, m.ConnectionOpen(vhost)),
            *(m.encode(number, m.ChannelOpen()) for number in channels),
        ]
    )


def publish(
    channel: int, exchange: str, key: str, body: bytes, frame_max: int = 131_072, mandatory: bool = False, **given: Any
) -> bytes:
    """Returns the frames of a publish. `given` are its properties."""
    method = m.BasicPublish(exchange=exchange, routing_key=key, mandatory=mandatory)
    out = [m.encode(channel, method), frame(HEADER, channel, encode(Properties(**given), len(body)))]
    room = frame_max - 8
    out += [frame(BODY, channel, body[at : at + room]) for at in range(0, len(body), room)]
    return b"".join(out)


# -- Conversations as text -----------------------------------------------------------------------------------------

FOSSILS: Final = frozenset({"ticket", "out_of_band", "channel_id", "known_hosts", "cluster_id", "server_properties"})
BY_NAME: Final = {made.name: made for made in m.METHODS.values()}
LINE: Final = re.compile(r"([a-z])(\d*)\s+(\S+)\s*(.*)")
ONE_WRITE: Final = " && "  # Separates what a client sends in one write.
_MADE_UP: Final = re.compile(r"(amq\.(?:gen|ctag)-)[\w-]{22}|(amq\.rabbitmq\.reply-to\.)[^'\"\s,}]+")
_NUMBERED: Final = re.compile(r"amq\.rabbitmq\.reply-to\.\d+\b")


def printed(method: m.Method) -> str:
    """Prints a method as in conversations: false and reserved fields are left out."""
    parts = [method.name]
    for each in fields(method):  # type: ignore[arg-type]
        value = getattr(method, each.name)
        if each.name in FOSSILS or value is False:
            continue
        if isinstance(value, dict):
            value = to_python(value)
        parts.append(each.name if value is True else f"{each.name}={value!r}")
    return " ".join(parts)


_PARSING: Final = threading.Lock()  # Python 3.11 counts the depth of syntax trees wrongly if two threads make some.


def arguments_of(text: str) -> dict[str, Any]:
    """Parses `queue='q' durable` as keyword arguments."""
    with _PARSING:
        call = ast.parse(f"f({_spread(text)})", mode="eval")
    assert isinstance(call.body, ast.Call)
    return {str(each.arg): ast.literal_eval(each.value) for each in call.body.keywords}


def _literal(text: str) -> Any:
    with _PARSING:
        return ast.literal_eval(text)


def _spread(text: str) -> str:
    """Puts commas between arguments. Spaces within quotes and brackets are left alone."""
    parts, depth, quote, start = [], 0, "", 0
    for at, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter == " " and not depth:
            parts.append(text[start:at])
            start = at + 1
    parts.append(text[start:])
    return ", ".join(part if "=" in part else f"{part}=True" for part in parts if part)


def table_of(values: dict[str, Any]) -> Table:
    """Returns the table of a literal; ('b', 5) is a five of field type b."""
    return {name: field_of(value) for name, value in values.items()}


def field_of(value: object) -> Field:
    if isinstance(value, tuple):
        kind, inner = value
        return Field(kind, inner)
    if isinstance(value, list):
        return Field("A", [field_of(each) for each in value])
    return Field("F", table_of(value)) if isinstance(value, dict) else from_python(value)


def method_of(name: str, text: str) -> m.Method:
    made = BY_NAME[name]
    given = arguments_of(text)
    for key, value in given.items():
        if isinstance(value, dict):
            given[key] = table_of(value)
    for each in fields(made):  # type: ignore[arg-type]
        missing = each.default is MISSING and each.default_factory is MISSING
        if each.name not in given and missing:
            given[each.name] = {"ShortStr": "", "LongStr": b"", "Table": {}}.get(str(each.type), 0)
    return made(**given)


def wire_of(channel: int, word: str, text: str) -> bytes:
    """Returns the bytes of one client line."""
    if word in BY_NAME:
        return m.encode(channel, method_of(word, text))
    if word == "bytes":
        return bytes(_literal(text))
    if word == "frame":
        kind, number, payload = _literal(f"({text})")
        return frame(kind, number, payload)
    if word == "heartbeat":
        return frame(HEARTBEAT, channel, b"")
    if word == "body":
        value = _literal(text)
        if isinstance(value, int):
            value = bytes(value)
        return frame(BODY, channel, value.encode() if isinstance(value, str) else value)
    given = arguments_of(text)
    properties = dict(given.pop("properties", {}))
    if "headers" in properties:
        properties["headers"] = table_of(properties["headers"])
    if word == "header":
        header = bytearray(encode(Properties(**properties), given["size"]))
        header[:2] = given.get("class_id", 60).to_bytes(2, "big")
        header[2:4] = given.get("weight", 0).to_bytes(2, "big")
        return frame(HEADER, channel, bytes(header))
    assert word == "publish", word
    body = given.pop("body", "")
    body = body.encode() if isinstance(body, str) else body
    return publish(
        channel, given.pop("exchange", ""), given.pop("routing_key", ""), body, **given, **properties
    )


class Said(NamedTuple):
    """One method or frame that a client sends."""

    who: str
    channel: int
    word: str
    text: str

    def wire(self) -> bytes:
        return wire_of(self.channel, self.word, self.text)


def parts_of(line: str) -> list[Said]:
    """Returns the parts of a line; several if they are sent in one write. All are of one client."""
    parts: list[Said] = []
    for part in line.split(ONE_WRITE):
        match = LINE.fullmatch(part)
        assert match is not None, line
        parts.append(Said(match[1], int(match[2] or 0), match[3], match[4]))
    assert len({part.who for part in parts}) == 1, line
    return parts


class Conversation(NamedTuple):
    title: str
    lines: list[str]


def written_conversations(name: str) -> list[Any]:
    """Returns all conversations of a file, for `pytest.mark.parametrize`."""
    text = (Path(__file__).parent / "conversations" / f"{name}.txt").read_text(encoding="utf-8")
    return [pytest.param(each, id=each.title) for each in conversations(text)]


def conversations(text: str) -> list[Conversation]:
    found: list[Conversation] = []
    for line in text.splitlines():
        if line.startswith("="):
            found.append(Conversation(line.strip("= "), []))
        elif line.strip() and not line.lstrip().startswith("#"):
            found[-1].lines.append(line.rstrip())
    return found


def client_lines(conversation: Conversation) -> list[str]:
    return [line for line in conversation.lines if not line.startswith(" ")]


class Transcript:
    """What clients send and receive, with generated names replaced by numbers, since they differ in each run."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.made_up: dict[str, str] = {}

    def sent(self, line: str) -> None:
        self.lines.append(line)

    def got(self, who: str, reply: object) -> None:
        self.lines.append("    < " + who + _MADE_UP.sub(self._number, str(reply)))

    def _number(self, match: re.Match[str]) -> str:
        return self.made_up.setdefault(match[0], f"{match[1] or match[2]}{len(self.made_up) + 1}")

    def understood(self, line: str) -> str:
        """Returns a line in which numbers are replaced by the names they stand for."""
        real = {shown: name for name, shown in self.made_up.items()}
        return _NUMBERED.sub(lambda match: real.get(match[0], match[0]), line)


def converse(conversation: Conversation, *worlds: World) -> list[str]:
    """Holds the conversation with the machines, and returns all lines as they should be in the text.

    Clients connect to the worlds in turn. A turn of one world is a turn of all.
    """
    worlds = worlds or (World(),)
    clients: dict[str, Client] = {}
    over: set[str] = set()
    transcript = Transcript()
    for line in client_lines(conversation):
        transcript.sent(line)
        parts = parts_of(transcript.understood(line))
        who, word = parts[0].who, parts[0].word
        if who not in clients:
            world = worlds[len(clients) % len(worlds)]
            clients[who] = Client(world) if word == "connect" else world.client()
        if word == "lost":
            clients[who].lose()
            over.add(who)
        elif word != "connect":
            clients[who].feed(b"".join(part.wire() for part in parts))
        worlds[0].turn()
        for name, client in sorted(clients.items()):
            if client.reader.greeting:
                transcript.got(name, f" bytes {client.reader.greeting!r}")
                client.reader.greeting = b""
            for reply in client.take():
                transcript.got(name, reply)
            if client.connection.closed and name not in over:
                over.add(name)
                transcript.got(name, " closed")
    return transcript.lines
