"""One conversation with a broker that is a process, over sockets. When an answer is complete: see the package."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from threading import Event
from typing import Any, Final, Protocol

from leveret.protocol import methods as m
from leveret.protocol.properties import BadProperties
from tests.support.machines import (
    ALL_CAPABILITIES,
    ONE_WRITE,
    Conversation,
    Reader,
    Reply,
    Said,
    arguments_of,
    hello,
    parts_of,
    wire_of,
)
from tests.system.compare.printing import Names, reply_text, table

HOST: Final = "127.0.0.1"
ANSWER_S: Final = 10.0  # An answer that takes longer is none.
LATE_S: Final = 1.5  # For answers that the other broker gave, and this one may not.
CLOSED_S: Final = 5.0
THE_END: Final = "the end"  # A step of its own where something comes after all was said.
RAW_WORDS: Final = frozenset({"bytes", "frame"})
# After these something may go on behind the answer: the last consumer gone, a queue goes too, and with it an exchange.
UNANSWERED_WORK: Final = frozenset(
    {"basic.cancel", "channel.close", "connection.close", "lost", "queue.unbind", "exchange.unbind", "queue.delete"}
)
# During a commit RabbitMQ forbids any other method on the channel; the other one cannot be told from a fence.
ASKED_ALONE: Final = frozenset({"tx.commit", "access.request"})
FENCE: Final = m.AccessRequest()

Step = tuple[str, list[str]]  # A line that was sent, and what came then.


class Target(Protocol):
    """A broker, as far as a conversation needs it."""

    port: int
    node: str
    quiet_s: float  # A silence so long is an end.
    behind_s: float  # What goes on behind an answer is done after this time.

    def control(self, vhost: str, text: str) -> str: ...


class ChannelState:
    def __init__(self) -> None:
        self.open = False
        self.confirms = False
        self.published = 0
        self.unconfirmed: list[int] = []
        self.content_left: int | None = None  # Bytes of body, -1 before the header; None between contents.


class Peer:
    """A client's socket, and what is known of its channels."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection((HOST, port), timeout=ANSWER_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reader = Reader()
        self.replies: list[Reply] = []
        self.channels: dict[int, ChannelState] = {}
        self.ended = False  # The server hung up.
        self.raw = False  # Bytes were sent of which nobody knows what they mean; it cannot be asked anything.
        self.closing = False
        self.notes: list[str] = []
        self.capabilities: dict[str, Any] = {}  # The server's.

    def state(self, channel: int) -> ChannelState:
        return self.channels.setdefault(channel, ChannelState())

    def send(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):  # Whatever it has to say about that is still read.
            self.socket.sendall(data)

    def read(self) -> bool:
        """Once, without waiting for more; False if nothing was heard."""
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionError:
            data = b""
        if not data:
            self.ended = True
            if not self.closing:  # Otherwise it is as it should be, and who closes the socket first is chance.
                self.notes.append(" closed")
            return True
        before = len(self.replies)
        try:
            self.replies += self.reader.feed(data)
        except (AssertionError, BadProperties, m.BadMethod) as error:
            self.notes.append(f" malformed: {error!r}")
            self.ended = True
        if self.reader.greeting:
            self.notes.append(f" bytes {self.reader.greeting!r}")
            self.reader.greeting = b""
        for reply in self.replies[before:]:
            self._follow(reply)
        return True

    def _follow(self, reply: Reply) -> None:
        method = reply.method
        if isinstance(method, m.ConnectionStart):
            self.capabilities = table(method.server_properties)["capabilities"]
        elif isinstance(method, m.ChannelOpenOk):
            self.channels[reply.channel] = ChannelState()
            self.state(reply.channel).open = True
        elif isinstance(method, m.ChannelClose | m.ChannelCloseOk):
            self.state(reply.channel).open = False
        elif isinstance(method, m.ConnectionClose | m.ConnectionCloseOk):
            self.closing = True
        elif isinstance(method, m.ConfirmSelectOk):
            self.state(reply.channel).confirms = True

    def sent(self, channel: int, word: str, text: str) -> None:
        """Keep in mind what it means for later."""
        state = self.state(channel)
        if word in RAW_WORDS:
            self.raw = True
        elif word == "basic.publish":
            state.content_left = -1
        elif word == "header":
            state.content_left = arguments_of(text)["size"]
        elif word == "body" and state.content_left is not None:
            state.content_left -= len(wire_of(channel, word, text)) - 8
        elif word == "channel.close":
            state.open = False
        elif word == "connection.close":
            self.closing = True
        elif word == "confirm.select":
            state.confirms = True
        if state.content_left == 0:
            state.content_left = None
        if state.confirms and (word == "publish" or (word in ("header", "body") and state.content_left is None)):
            state.published += 1
            state.unconfirmed.append(state.published)

    def said(self) -> int:
        """The number of methods that were heard and not taken."""
        return sum(reply.method is not None for reply in self.replies)

    def fenceable(self) -> list[int]:
        if self.ended or self.raw or self.closing:
            return []
        return [number for number, state in self.channels.items() if state.open and state.content_left is None]


class Session:
    """A conversation under way. `expected`: what the other broker answered, step by step."""

    def __init__(self, target: Target, vhost: str, expected: Sequence[Step] | None = None) -> None:
        self.target = target
        self.vhost = vhost
        self.expected = expected
        self.names = Names(vhost, target.node)
        self.peers: dict[str, Peer] = {}
        self.steps: list[Step] = []

    def hold(self, conversation: Conversation) -> list[Step]:
        try:
            for line in conversation.lines:
                self._step(line)
            self._hear_out(THE_END, [])
            if not self.steps[-1][1]:
                self.steps.pop()
            return self.steps
        finally:
            self._end()

    def _step(self, line: str) -> None:
        word, _, text = line.partition(" ")
        notes: list[str] = []
        if word == "wait":
            self._listen(time.monotonic() + int(text) / 1000)
        elif word == "ctl":
            notes.append(f"    < {self.target.control(self.vhost, text)}")
        else:
            self._say(line)
        self._hear_out(line, notes)

    def _say(self, line: str) -> None:
        parts = parts_of(self.names.understand(line))
        who, channel, word, text = parts[0]
        if who not in self.peers:
            self.peers[who] = Peer(self.target.port)
            if word != "connect":
                self._open(self.peers[who], **(arguments_of(text) if word == "open" else {}))
        peer = self.peers[who]
        if word == "lost":
            peer.socket.close()
            peer.ended = True
        elif word == "capabilities":
            peer.notes.append(f" {peer.capabilities}")
        elif word not in ("connect", "open"):
            if word == "connection.open":
                text = text.replace("virtual_host='/'", f"virtual_host='{self.vhost}'")
            peer.send(b"".join(part.wire() for part in (Said(who, channel, word, text), *parts[1:])))
            for part in parts:
                peer.sent(part.channel, part.word, part.text)

    def _open(self, peer: Peer, **given: Any) -> None:
        user = given.get("user", "guest")
        capabilities = given.get("capabilities", ALL_CAPABILITIES)
        frame_max, heartbeat = given.get("frame_max", 131_072), given.get("heartbeat", 0)
        peer.send(hello(user, user, self.vhost, capabilities, frame_max, 2047, heartbeat, (1,)))
        self._listen(time.monotonic() + ANSWER_S, lambda: peer.said() >= 4 or peer.closing)
        if peer.said() == 4:  # All is well, and of no interest; nor are heartbeats.
            peer.replies.clear()

    # -- Hearing -----------------------------------------------------------------------------------------------------

    def _listen(self, deadline: float, done: Callable[[], bool] | None = None, silence_s: float | None = None) -> None:
        """Until the time is over, it is done, or it has been silent for so long."""
        while True:
            peers = [peer for peer in self.peers.values() if not peer.ended]
            left = deadline - time.monotonic()
            if not peers or left <= 0 or (done is not None and done()):
                return
            wait = left if silence_s is None else min(left, silence_s)
            ready = select.select([peer.socket for peer in peers], [], [], wait)[0]
            if not ready and silence_s is not None:
                return
            for peer in peers:
                if peer.socket in ready:
                    peer.read()

    def _has_heard(self, count: int) -> Callable[[], bool]:
        return lambda: self._heard() >= count

    def _heard(self) -> int:
        return sum(len(peer.notes) + peer.said() for peer in self.peers.values())

    def _fence(self) -> None:
        """Every channel has dealt with what it was sent."""
        waiting = {}
        for peer in self.peers.values():
            for channel in peer.fenceable():
                waiting[peer, channel] = 1 + _tickets(peer, channel)
                peer.send(m.encode(channel, FENCE))
        deadline = time.monotonic() + ANSWER_S
        for (peer, channel), wanted in waiting.items():
            self._listen(deadline, partial(_passed, peer, channel, wanted))
            if not _passed(peer, channel, wanted):
                peer.notes.append(f"{channel} does not answer any more")
                peer.raw = True
            _drop_ticket(peer, channel, wanted)

    def _hear_out(self, line: str, notes: list[str]) -> None:
        word = line.rpartition(ONE_WRITE)[2].partition(" ")[2].partition(" ")[0]
        if word == "lost":
            Event().wait(self.target.behind_s)  # It may have been the only one to listen to.
        if word in ASKED_ALONE:
            self._await_answer(line)
        self._fence()
        wanted = self._wanted(line)
        if wanted is not None:
            told = self._has_heard(len(wanted) - len(notes))
            close_awaited = any(".close " in each for each in wanted)
            self._listen(time.monotonic() + LATE_S, lambda: told() or (not close_awaited and self._is_closed()))
        if wanted is None or word in UNANSWERED_WORK:
            self._fence()
            silence_s = self.target.behind_s if word in UNANSWERED_WORK else self.target.quiet_s
            self._listen(time.monotonic() + ANSWER_S, silence_s=silence_s)
        self.steps.append((line, notes + self._take()))

    def _await_answer(self, line: str) -> None:
        who, channel, _, _ = parts_of(line)[-1]
        peer = self.peers[who]
        self._listen(time.monotonic() + ANSWER_S, lambda: self._heard() > 0 or channel not in peer.fenceable())

    def _is_closed(self) -> bool:
        """Something was closed, after which nothing comes any more."""
        closed = (m.ChannelClose, m.ConnectionClose)
        return any(isinstance(reply.method, closed) for peer in self.peers.values() for reply in peer.replies)

    def _wanted(self, line: str) -> list[str] | None:
        """What the other broker answered here; None if it is not known, or they have parted already."""
        at = len(self.steps)
        if line == THE_END and self.expected == self.steps:
            return []
        if self.expected is None or at >= len(self.expected) or self.expected[at][0] != line:
            return None
        if at and self.steps[-1] != self.expected[at - 1]:
            self.expected = None
            return None
        return self.expected[at][1]

    def _take(self) -> list[str]:
        lines = []
        for who, peer in sorted(self.peers.items()):
            replies, peer.replies = peer.replies, []
            for channel in sorted({reply.channel for reply in replies}):
                said = [reply for reply in replies if reply.channel == channel and reply.method is not None]
                texts = [reply_text(reply) for reply in said if not isinstance(reply.method, m.BasicAck | m.BasicNack)]
                texts += confirms(peer.state(channel), said)
                lines += [f"    < {who}{channel} {self.names.show(text)}" for text in texts]
            lines += [f"    < {who}{self.names.show(note)}" for note in peer.notes]
            peer.notes = []
        return lines

    # -- The end -----------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """In good order, so that nothing of the conversation is left but what is declared."""
        for peer in self.peers.values():
            if not peer.ended:
                peer.send(m.encode(0, m.ConnectionCloseOk() if peer.closing else m.ConnectionClose(200, "bye")))
        asked = [peer for peer in self.peers.values() if not peer.raw and not peer.closing]
        self._listen(time.monotonic() + CLOSED_S, lambda: all(peer.ended or peer.closing for peer in asked))
        for peer in self.peers.values():
            peer.socket.close()


def _tickets(peer: Peer, channel: int) -> int:
    return len([1 for one in peer.replies if one.channel == channel and isinstance(one.method, m.AccessRequestOk)])


def _passed(peer: Peer, channel: int, wanted: int) -> bool:
    """So many fences were answered, or there is nobody any more who would."""
    return _tickets(peer, channel) >= wanted or channel not in peer.fenceable()


def _drop_ticket(peer: Peer, channel: int, wanted: int) -> None:
    found = [
        at
        for at, one in enumerate(peer.replies)
        if one.channel == channel and isinstance(one.method, m.AccessRequestOk)
    ]
    if len(found) >= wanted:
        del peer.replies[found[-1]]


def confirms(state: ChannelState, replies: Iterable[Reply]) -> list[str]:
    """The acks and nacks among them, one line for each message."""
    told: list[tuple[int, str]] = []
    for reply in replies:
        method = reply.method
        if not isinstance(method, m.BasicAck | m.BasicNack):
            continue
        tags = [method.delivery_tag]
        if method.multiple:
            tags = [tag for tag in state.unconfirmed if tag <= method.delivery_tag] or tags
        state.unconfirmed = [tag for tag in state.unconfirmed if tag not in tags]
        told += [(tag, method.name) for tag in tags]
    return [f"{name} {tag}" for tag, name in sorted(told)]
