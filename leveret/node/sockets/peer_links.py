"""The sockets between nodes: dials members, listens for them, and moves frames.

`Link` (one connection) and `FailureDetector` (which links make a peer that counts) decide; this module owns sockets,
timers and random numbers. What a user of it may rely on:

- `on_up` and `on_down` alternate for each peer. In between, frames sent arrive in order, or `on_down` comes. A frame
  never comes from a peer that is not up, nor from an earlier session.
- `send` only gathers. All frames gathered for a peer leave in one write when `flush` is called, at the end of a node's
  turn; without turns, the event loop does it.
- Memory for a peer that reads slowly has two limits. Above `unsent_bytes_high` `is_writable` is False, until
  `on_drained`: senders that can wait should. What cannot wait may still be sent, and above `unsent_bytes_max` the peer
  is disconnected; it links again when it can.

Dialing: every node dials each member, at once, then after a time that doubles with each failure, of which a random
part is left out, so that not all nodes dial a node that comes back at the same moment. An incoming link shows that the
peer is there, so it is dialed without waiting any longer.

Calls (see `peer_socket`) come in at the same port and are answered by `Handler.on_call`.

An unknown caller costs one descriptor and about 2 KiB, for at most `greeting_ms`, and there are at most `unproven_max`
of them: one more ends the oldest, since a caller with the cookie is done within milliseconds. With TLS a connection is
seen here only after TLS's own handshake, so during that only its time is limited.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from leveret.links import failure_detector, link
from leveret.links.compression import BadPacked, Compressor, unpacked
from leveret.links.failure_detector import IN, OUT, Cut, DetectorOptions, Down, FailureDetector, Pair, Up
from leveret.links.frame_types import PACKED
from leveret.links.link import Buffer, Failed, Frames, Identity, Link, Paired, Ready
from leveret.node.sockets.peer_socket import PeerSocket, PeersOptions, PeerTls, call, connect
from leveret.node.sockets.tls_handshakes import TlsHandshakes, TlsServer
from leveret.node.sockets.unauthenticated import Unauthenticated

logger = logging.getLogger("leveret.peers")

# What has gathered for one peer within a turn is written early from here on, so that the kernel sends meanwhile.
FLUSH_BYTES: Final = 1 << 20
# How long a pass of the event loop handles frames of one peer. After a start, thousands of mirrored queues have some.
FRAMES_S_MAX: Final = 0.01
LATE_MS: Final = 50  # A tick that was to come along may be so late.
CLOSE_S: Final = 1.0
COMPLAINT_MS: Final = 10_000
COMPLAINTS_MAX: Final = 256
TURNED_AWAY_MAX: Final = 16
NOT_A_MEMBER: Final = "is not a member of the cluster"

Respond = Callable[[bytes | Sequence[Buffer]], None]


class Address(NamedTuple):
    """The address of a member, and its incarnation; None: any incarnation."""

    host: str
    port: int
    uuid: bytes | None = None


class PeerInfo(NamedTuple):
    identity: Identity
    address: tuple[str, int]
    version: int


class Handler(Protocol):
    """The user of the links. Called from the event loop, never from within `send`.

    If `on_frame` or `on_call` raise, the connection ends; the others must not raise.
    """

    def on_up(self, peer: str, info: PeerInfo) -> None: ...
    def on_down(self, peer: str, reason: str) -> None: ...
    def on_frame(self, peer: str, kind: int, payload: bytes) -> None: ...
    def on_drained(self, peer: str) -> None: ...
    def on_call(self, caller: Identity, kind: int, payload: bytes, respond: Respond) -> None:
        """Answers a call with `respond`, once, now or later. `respond` does nothing if the caller has gone."""


class _Member:
    __slots__ = ("name", "address", "wires", "trying", "dial", "retry", "failures", "told", "refusal")

    def __init__(self, name: str, address: Address) -> None:
        self.name = name
        self.address = address
        self.wires: list[PeerSocket | None] = [None, None]  # by side; greeted
        self.trying: PeerSocket | None = None  # dialed, not greeted yet
        self.dial: asyncio.Task[None] | None = None
        self.retry: asyncio.TimerHandle | None = None
        self.failures = 0
        self.told = ""  # what was last logged about it
        self.refusal = ""  # what it said when it turned this node away

    def uuid(self) -> bytes | None:
        """Returns the id of the member's incarnation, as far as that is known."""
        for wire in self.wires:
            if wire is not None and wire.link.peer is not None:
                return wire.link.peer.uuid
        return self.address.uuid

    def move(self, address: Address) -> None:
        self.address = address

    def forget_failures(self) -> None:
        """Dial it as soon as one that never failed."""
        self.failures = 0

    def on_up(self) -> None:
        self.failures, self.told, self.refusal = 0, "", ""

    def on_failed(self, text: str) -> None:
        """Note why it could not be dialed; of the first failure nothing is remembered."""
        self.told = text if self.failures else ""

    def on_refused(self, refusal: str) -> None:
        self.refusal = refusal

    def begin_dial(self, dial: asyncio.Task[None]) -> None:
        self.dial = dial

    def end_dial(self) -> None:
        self.dial = None

    def begin_try(self, wire: PeerSocket) -> None:
        self.trying = wire

    def end_try(self, wire: PeerSocket) -> bool:
        """Returns whether this connection was being tried."""
        is_tried = self.trying is wire
        if is_tried:
            self.trying = None
        return is_tried

    def retry_later(self, retry: asyncio.TimerHandle) -> None:
        self.failures += 1
        self.retry = retry

    def stop_retry(self) -> None:
        if self.retry is not None:
            self.retry.cancel()
            self.retry = None

    def stop_dialing(self) -> None:
        self.stop_retry()
        if self.dial is not None:
            self.dial.cancel()
            self.dial = None
        if self.trying is not None:
            trying, self.trying = self.trying, None
            trying.abort()


class PeerLinks:
    """All links of one node."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        me: Identity,
        cookie: bytes,
        handler: Handler,
        options: PeersOptions = PeersOptions(),  # noqa: B008 (immutable)
        tls: PeerTls | None = None,
        random_source: random.Random | None = None,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
        precise_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.me = me
        self.options = options
        self._loop = loop
        self._cookie = cookie
        self._handler = handler
        self._tls = tls
        self._random = random_source or random.Random()
        self._random_bytes = random_bytes
        self._precise_s = precise_s
        self._link_options = options.of_link()
        self._beat_ms, self._tick_ms = options.beat_ms(), options.tick_ms()
        # Callers do not know this node's options, and send heartbeats at the default interval.
        self._caller_silence_ms = max(options.silence_ms, PeersOptions().silence_ms)
        times = (options.silence_ms, options.doubt_ms(), 2 * options.tick_ms(), options.stable_ms, options.calm_ms)
        self._detector = FailureDetector(DetectorOptions(*times))
        self._members: dict[str, _Member] = {}
        self._turned_away: set[str] = set()  # Nodes that take this one for a member of their cluster, unknown here.
        self._has_cluster = False  # Else it has not joined yet, or its app is stopped: it cannot say who is no member.
        self._up: dict[str, PeerSocket] = {}  # outgoing
        self._wires: dict[PeerSocket, None] = {}  # all that are open
        self._unproven: Unauthenticated[PeerSocket] = Unauthenticated()
        self._entrance = TlsHandshakes(loop, options.unproven_max)
        self._calls: dict[PeerSocket, None] = {}
        self._dirty: list[PeerSocket] = []
        self._flush_scheduled = False
        self._pending: deque[tuple[_Member, failure_detector.Event]] = deque()  # what the detector wants done
        self._acting = False
        self._complaints = _Complaints()
        self.compressors: dict[str, Compressor] = {}  # By peer; there are at most as many as members.
        self.barred: frozenset[str] = frozenset()  # Nodes without links: a partition that tests can ask for.
        self.on_nobody_listens: Callable[[str], None] = lambda peer: None  # A member's host refused a connection.
        # Whether this node is in a minority without these peers, and so must not wait for them as long as they for it.
        self.needs_any_of: Callable[[list[str]], bool] = lambda peers: False
        self._server: asyncio.Server | TlsServer | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._closing = False
        self._all_closed: asyncio.Future[None] | None = None

    # -- For the node --------------------------------------------------------------------------------------------

    async def listen(self, host: str | None, port: int) -> int:
        """Opens the cluster port, begins to tick, and returns the port that was opened. Raises OSError."""
        if self._tls is None:
            self._server = await self._loop.create_server(self._accept, host or None, port)
        else:
            seconds = self.options.greeting_ms / 1000
            self._server = await self._entrance.listen(self._accept, host or None, port, self._tls.server, seconds)
        self._tick()
        return int(self._server.sockets[0].getsockname()[1])

    def set_members(self, members: Mapping[str, Address], why: str = "it is no longer a member of the cluster") -> None:
        """Sets the members of the cluster; the node itself may be among them. `why`: the reason for which links with
        others end."""
        self._has_cluster = bool(members)
        self._turned_away.clear()  # They dial again.
        for name in [name for name in self._members if name not in members]:
            self._forget(self._members[name], why)
        for name, address in members.items():
            member = self._members.get(name)
            if name == self.me.name or (member is not None and member.address == address):
                continue
            if member is not None and address.uuid is not None and member.uuid() not in (None, address.uuid):
                self._forget(member, "another incarnation has taken its place")
                member = None
            if member is None:
                self._members[name] = member = _Member(name, address)
            member.move(address)
            member.forget_failures()
            self._dial_now(member)

    def set_cluster(self, cluster: bytes) -> None:
        """Sets the uuid of the node's cluster, which new links tell."""
        self.me = self.me._replace(cluster=cluster)

    def is_up(self, peer: str) -> bool:
        return peer in self._up

    def is_writable(self, peer: str) -> bool:
        """Returns whether the peer is up and reads fast enough. If not, `on_drained` or `on_down` will come."""
        wire = self._up.get(peer)
        return wire is not None and wire.writable

    def refused_by(self) -> dict[str, str]:
        """Returns the members that refused this node when they were last dialed, with their reasons."""
        return {member.name: member.refusal for member in self._members.values() if member.refusal}

    def turned_away(self) -> list[str]:
        """Returns the nodes, as far as they have dialed since the members last changed, that know the cookie and take
        this node for a member of their cluster, and that are no members here, or other incarnations of members."""
        return sorted(self._turned_away)

    def retry(self) -> None:
        """Dials all members without a link now, instead of when they are due."""
        for member in self._members.values():
            member.forget_failures()
            self._dial_now(member)

    def unsent_bytes(self, peer: str) -> int:
        wire = self._up.get(peer)
        return 0 if wire is None else wire.unsent_bytes()

    def send(self, peer: str, kind: int, payload: bytes | Sequence[Buffer]) -> bool:
        """Gathers a frame to be sent. Returns False if the peer is not up. See `Link.send`."""
        wire = self._up.get(peer)
        if wire is None:
            return False
        if self.options.compresses:
            compressor = self.compressors.setdefault(peer, Compressor())
            packed = compressor.packed(kind, payload, self.options.frame_bytes_max)
            if packed is not None:
                kind, payload = PACKED, packed
        try:
            wire.link.send(kind, payload)
        except link.TooLarge as error:  # The peer has another `max_message_size`. Only this link ends.
            logger.error("closing the link to %s: %s", peer, error)
            wire.abort()
            return False
        if not wire.dirty:
            wire.dirty = True
            self._dirty.append(wire)
            if not self._flush_scheduled:
                self._flush_scheduled = True
                self._loop.call_soon(self.flush)
        if wire.link.out_bytes >= FLUSH_BYTES:
            self._write(wire)
            wire.dirty = True  # It is still in the list of those to flush.
        return True

    def cut(self, peer: str, reason: str) -> None:
        """Ends the session with a peer; another one may begin."""
        wire = self._up.get(peer)
        if wire is not None:
            self._loop.call_soon(self._break, wire, reason)

    def bar(self, names: frozenset[str]) -> None:
        """Forbids links with these nodes, and allows links with all others."""
        free, self.barred = self.barred - names, names
        for name in names:
            self.cut(name, "it is barred")
        for member in list(self._members.values()):
            if member.name in free:
                member.forget_failures()
                self._dial_now(member)

    def tick_along(self, next_ms: int) -> None:
        """Does now what a tick of its own would do soon: the node has woken up for something else, and is going to do
        so again in `next_ms`. Call it before `flush`, to have heartbeats leave with what has gathered."""
        if self._ticker is not None and not self._closing and next_ms <= self._beat_ms:
            self._ticker.cancel()
            self._tick(next_ms)

    def flush(self) -> None:
        """Writes the gathered frames, once for each peer."""
        self._flush_scheduled = False
        if self._dirty:
            dirty, self._dirty = self._dirty, []
            for wire in dirty:
                self._write(wire)

    async def call(
        self, address: tuple[str, int], kind: int, payload: bytes | Sequence[Buffer], timeout_s: float
    ) -> bytes:
        return await call(address, kind, payload, timeout_s, self.me, self._cookie, self._tls, self.options)

    async def close(self) -> None:
        """Send what has gathered and close; wait a moment for it to be read. Nothing is told to the handler any more.

        Only outgoing links are closed from here. Closing an incoming one would end the session at the peer, before it
        has read what is under way to it; it closes that by itself when it has come to the end.
        """
        self._closing = True
        if self._server is not None:
            self._server.close()
        self._entrance.close()
        if self._ticker is not None:
            self._ticker.cancel()
        for member in self._members.values():
            member.stop_dialing()
        self.flush()
        self._up.clear()
        self._members.clear()
        for wire in list(self._wires):
            if wire.peer is None:
                wire.end()
            elif wire.side == OUT:
                wire.finish()
        if self._wires:
            self._all_closed = self._loop.create_future()
            await asyncio.wait([self._all_closed], timeout=CLOSE_S)
            for wire in list(self._wires):
                wire.abort()

    # -- Time ----------------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _tick(self, along_ms: int = 0) -> None:
        """Ticks. `along_ms`: the time until the next `tick_along`."""
        now_ms, next_ms = self.now_ms(), self._tick_ms
        wires = list(self._wires)
        if along_ms and all(wire.link.silent_ms(now_ms) < 2 * self._beat_ms for wire in wires):
            # Nobody is silent, so nobody can have been silent for long before the next one. Should there be none,
            # because the node does something again, this one's own tick comes soon after.
            next_ms = along_ms + LATE_MS
        self._ticker = self._loop.call_later(next_ms / 1000, self._tick)
        for wire in wires:
            self._tick_wire(wire, now_ms)
        self._beat(wires, now_ms)
        self._act(self._detector.tick(now_ms))
        doubtful = self._detector.doubtful()
        if doubtful and self.needs_any_of(doubtful):
            for peer in doubtful:
                self._act(self._detector.give_up(peer, now_ms))

    def _tick_wire(self, wire: PeerSocket, now_ms: int) -> None:
        for event in wire.link.tick(now_ms):
            self.on_event(wire, event)
        if self._member_of(wire) is not None:
            self._detector.heard(wire.peer or "", wire.side, wire.link.heard_ms)
        elif (wire.closed or wire in self._calls) and wire.link.silent_ms(now_ms) >= self._caller_silence_ms:
            wire.abort()

    def _beat(self, wires: list[PeerSocket], now_ms: int) -> None:
        """Writes heartbeats. Both links of a peer beat at the same time, so that it wakes up once for both."""
        for member in self._members.values():
            out, in_ = member.wires
            if out is not None and in_ is not None and bool(out.link.out) != bool(in_.link.out):
                (in_ if out.link.out else out).link.beat_along(now_ms)
        self.flush()  # What gets an answer goes first: the answer is as good as a heartbeat.
        for wire in wires:
            if wire.link.out:
                wire.flush()

    # -- Wires ---------------------------------------------------------------------------------------------------

    def _accept(self) -> PeerSocket:
        return PeerSocket(self, self._make_link(link.ACCEPTOR), IN)

    def _make_link(self, role: int) -> Link:
        nonce = self._random_bytes(link.NONCE_BYTES)
        return Link(role, self.me, self._cookie, nonce, self.now_ms(), self._link_options)

    def _member_of(self, wire: PeerSocket) -> _Member | None:
        """Returns the member of which this is a greeted link."""
        member = self._members.get(wire.peer) if wire.peer is not None else None
        return member if member is not None and member.wires[wire.side] is wire else None

    def on_connected(self, wire: PeerSocket) -> None:
        self._wires[wire] = None
        assert wire.transport is not None
        wire.transport.set_write_buffer_limits(self.options.unsent_bytes_high, self.options.unsent_bytes_high // 2)
        if self._closing:
            wire.abort()
        elif wire.side == IN:
            if len(self._unproven) >= self.options.unproven_max:
                evicted = self._unproven.evict()
                assert evicted is not None
                self._complain(evicted, "too many connections that have not authenticated")
                evicted.abort()
            self._unproven.add(wire, str((wire.transport.get_extra_info("peername") or ("",))[0]))

    def on_event(self, wire: PeerSocket, event: link.Event) -> None:
        if self._closing:
            return
        if type(event) is Frames:
            self._on_frames(wire, event.frames)
        elif type(event) is Ready:
            self._on_ready(wire, event)
        elif type(event) is Paired:
            if wire.peer is not None and wire.side == IN:
                self._act(self._detector.on_paired(wire.peer, event.link, self.now_ms()))
        elif type(event) is Failed:
            if wire.side == IN and not wire.failure:
                self._complain(wire, event.text)
            wire.failure = wire.failure or event.text
            if event.reason == link.REFUSED:
                wire.refusal = event.text
            wire.end()
            self._on_unusable(wire)

    def on_ended(self, wire: PeerSocket) -> None:
        self._on_unusable(wire)

    def on_closed(self, wire: PeerSocket) -> None:
        self._wires.pop(wire, None)
        self._unproven.discard(wire)
        self._calls.pop(wire, None)
        if not self._wires and self._all_closed is not None and not self._all_closed.done():
            self._all_closed.set_result(None)
        self._on_unusable(wire)

    def on_writable(self, wire: PeerSocket) -> None:
        if not self._closing and wire.peer is not None and self._up.get(wire.peer) is wire:
            self._handler.on_drained(wire.peer)

    def _on_unusable(self, wire: PeerSocket) -> None:
        """Called when a wire was closed, or is about to be: its member must know before anyone sends on it."""
        member = self._members.get(wire.peer) if wire.peer is not None else None
        if member is None:
            return
        if member.end_try(wire):
            member.on_refused(wire.refusal)
            self._on_dial_failed(member, wire.failure)
        elif member.wires[wire.side] is wire:
            self._drop(member, wire.side, wire.failure)

    def _break(self, wire: PeerSocket, reason: str) -> None:
        wire.failure = wire.failure or reason
        wire.abort()
        self._on_unusable(wire)

    def _write(self, wire: PeerSocket) -> None:
        wire.flush()
        unsent = wire.unsent_bytes()
        if unsent > self.options.unsent_bytes_max and wire.peer is not None and self._up.get(wire.peer) is wire:
            # `on_down` must not be called from within `send`; until it is, nothing more may be gathered.
            del self._up[wire.peer]
            self._loop.call_soon(self._break, wire, f"it does not keep up: {unsent} bytes wait to be sent")

    def _complain(self, wire: PeerSocket, text: str) -> None:
        suppressed = self._complaints.due(str(wire.address[0]), self.now_ms())
        if suppressed is not None:
            more = f" ({suppressed} more like this from there)" if suppressed else ""
            logger.warning("connection from %s:%s refused: %s%s", *wire.address, text, more)

    # -- Greeted -------------------------------------------------------------------------------------------------

    def _on_ready(self, wire: PeerSocket, event: Ready) -> None:
        self._unproven.discard(wire)
        if event.purpose == link.CALL:
            if len(self._calls) >= self.options.calls_max:
                wire.refuse("too many calls at once")
            else:
                self._calls[wire] = None
            return
        name = wire.peer or event.peer.name
        member = self._members.get(name)
        misfit = self._misfit(event.peer, name, member)
        if misfit is not None or member is None:
            if wire.side == IN:
                self._complain(wire, misfit or "")
                self._note_turned_away(event.peer, member)
            wire.refuse(misfit or "")
            self._on_unusable(wire)
            return
        for side in (1 - wire.side, wire.side):
            other = member.wires[side]
            if other is not None and (other.link.peer is None or other.link.peer.uuid != event.peer.uuid):
                self._drop(member, side, "another incarnation has taken its place")
            elif other is not None and side == wire.side:
                self._drop(member, side, "the peer began anew")
        member.end_try(wire)
        wire.peer = name
        member.wires[wire.side] = wire
        self._act(self._detector.on_linked(name, wire.side, wire.link.id, self.now_ms()))
        if wire.side == IN and self._members.get(name) is member:
            self._dial_now(member)

    def _misfit(self, peer: Identity, expected: str, member: _Member | None) -> str | None:
        """Returns why a peer with the right cookie is refused; None if it is accepted."""
        if peer.name != expected:
            return f"expected {expected} at this address, found {peer.name}"
        if not self._has_cluster:
            return f"{self.me.name} belongs to no cluster yet, or its app is stopped"
        if member is None:
            return f"{peer.name} {NOT_A_MEMBER} of {self.me.name}"
        if peer.name in self.barred:
            return f"{peer.name} is barred"
        if member.address.uuid not in (None, peer.uuid):
            return f"this {peer.name} is another incarnation than the member of the cluster: was its data deleted?"
        return None

    def _note_turned_away(self, peer: Identity, member: _Member | None) -> None:
        is_unknown = member is None or member.address.uuid not in (None, peer.uuid)
        if self._has_cluster and is_unknown and len(self._turned_away) < TURNED_AWAY_MAX:
            self._turned_away.add(peer.name)

    def _on_frames(self, wire: PeerSocket, frames: list[tuple[int, bytes]]) -> None:
        if wire in self._calls:
            self._on_call(wire, frames)
            return
        name = wire.peer
        if name is None or not self._detector.is_up(name):
            self._break(wire, "it sent a frame before its session began")
            return
        if wire.waiting:
            wire.waiting += frames
        else:
            self._handle_frames(wire, name, frames)

    def _handle_frames(self, wire: PeerSocket, name: str, frames: list[tuple[int, bytes]]) -> None:
        """Hands over frames, as many as fit into a pass of the loop; the rest comes in the next one."""
        on_frame, precise_s = self._handler.on_frame, self._precise_s
        until_s, last = precise_s() + FRAMES_S_MAX, len(frames)
        try:
            for number, (kind, payload) in enumerate(frames, 1):
                if kind == PACKED:
                    kind, payload = unpacked(payload, self.options.frame_bytes_max)
                on_frame(name, kind, payload)
                if wire.closed:
                    return
                if number < last and precise_s() >= until_s:
                    wire.hold(frames[number:])
                    self._loop.call_soon(self._handle_waiting, wire)
                    return
        except BadPacked as error:
            self._break(wire, str(error))
        except Exception:  # A frame is half handled: the session cannot go on, and both ends must know.
            logger.exception("a frame from %s: internal error", name)
            self._break(wire, "internal error in handling a frame")

    def _handle_waiting(self, wire: PeerSocket) -> None:
        if not (wire.closed or self._closing):
            self._on_frames(wire, wire.take_waiting())

    def _on_call(self, wire: PeerSocket, frames: list[tuple[int, bytes]]) -> None:
        if len(frames) != 1 or wire.link.peer is None or wire.asked:
            wire.refuse("one call asks one question")
            return
        wire.asked = True
        kind, payload = frames[0]

        def respond(answer: bytes | Sequence[Buffer]) -> None:
            if wire.closed:
                return
            try:
                wire.link.send(kind, answer)
            except link.TooLarge as error:
                wire.refuse(str(error))
            else:
                wire.flush()

        try:
            self._handler.on_call(wire.link.peer, kind, payload, respond)
        except Exception:  # Only this caller gets no answer, and the bug is logged.
            logger.exception("a call from %s:%s: internal error", *wire.address)
            wire.refuse("internal error")

    # -- Sessions ------------------------------------------------------------------------------------------------

    def _act(self, events: list[failure_detector.Event]) -> None:
        """Handles events in order, even if a handler changes the members from within one of them: an `on_down` that
        this causes must not overtake an `on_up` that has not been called yet."""
        for event in events:
            member = self._members.get(event.peer)
            if member is not None:
                self._pending.append((member, event))
        if self._acting:
            return
        self._acting = True
        try:
            while self._pending and not self._closing:
                self._act_on(*self._pending.popleft())
        finally:
            self._acting = False

    def _act_on(self, member: _Member, event: failure_detector.Event) -> None:
        if type(event) is Pair:
            wire = member.wires[OUT]
            assert wire is not None and not wire.closed  # Both links of a pair are there.
            wire.link.pair(event.link)
            wire.flush()
        elif type(event) is Up:
            self._on_up(member)
        elif type(event) is Cut:
            self._cut(member, event.reason)
        elif type(event) is Down:
            self._up.pop(member.name, None)
            logger.warning("peer %s is down: %s", member.name, event.reason)
            self._handler.on_down(member.name, event.reason)

    def _on_up(self, member: _Member) -> None:
        wire = member.wires[OUT]
        assert wire is not None and wire.link.peer is not None and not wire.closed
        member.on_up()
        self._up[member.name] = wire
        logger.info("peer %s is up", member.name)
        self._handler.on_up(member.name, PeerInfo(wire.link.peer, wire.address, wire.link.version))

    def _drop(self, member: _Member, side: int, reason: str) -> None:
        """Ends one link, if it has not ended already."""
        wire, member.wires[side] = member.wires[side], None
        if wire is not None:
            wire.abort()
            if side == OUT:
                member.on_refused(wire.refusal)
        was_up = self._detector.is_up(member.name)
        self._act(self._detector.on_lost(member.name, side, reason, self.now_ms()))
        if side == OUT and was_up:
            self._retry(member)
        elif side == OUT:
            self._on_dial_failed(member, reason)  # Greeted, then refused: it is not logged elsewhere.

    def _cut(self, member: _Member, reason: str) -> None:
        for side in (OUT, IN):
            wire, member.wires[side] = member.wires[side], None
            if wire is not None:
                wire.failure = reason
                wire.abort()
        self._retry(member)

    def _forget(self, member: _Member, reason: str) -> None:
        member.stop_dialing()
        self._act(self._detector.forget(member.name, reason, self.now_ms()))
        member.stop_dialing()  # Ending its session has begun to dial again.
        self._members.pop(member.name, None)

    # -- Dialing -------------------------------------------------------------------------------------------------

    def _dial_now(self, member: _Member) -> None:
        if self._closing or member.dial is not None or member.trying is not None or member.wires[OUT] is not None:
            return
        member.stop_retry()
        member.begin_dial(self._loop.create_task(self._dial(member, member.address)))

    async def _dial(self, member: _Member, address: Address) -> None:
        wire = PeerSocket(self, self._make_link(link.DIALER), OUT, member.name)
        member.begin_try(wire)
        text = await connect(self._loop, wire, address.host, address.port, self._tls, self.options)
        member.end_dial()
        if text is not None:
            member.end_try(wire)
            self._on_dial_failed(member, text)
            if wire.nobody_listens and self._members.get(member.name) is member:
                self.on_nobody_listens(member.name)
        elif member.trying is not wire:
            self._retry(member)  # The peer refused it before this task went on; it is tried again all the same.

    def _on_dial_failed(self, member: _Member, text: str) -> None:
        # While a node joins, some members know of it before others do: that is no reason to warn.
        level = logging.DEBUG if text == member.told else logging.WARNING if member.failures else logging.INFO
        member.on_failed(text)
        address = member.address
        logger.log(level, "cannot link to %s at %s:%d: %s", member.name, address.host, address.port, text)
        self._retry(member)

    def _retry(self, member: _Member) -> None:
        """Dials again, after a while."""
        busy = (member.retry, member.dial, member.trying, member.wires[OUT]) != (None, None, None, None)
        if busy or self._closing or self._members.get(member.name) is not member:
            return
        options = self.options
        longest_ms = min(options.retry_ms_min << min(member.failures, 20), options.retry_ms_max)
        delay_s = longest_ms * (0.5 + self._random.random() / 2) / 1000
        member.retry_later(self._loop.call_later(delay_s, self._on_retry, member))

    def _on_retry(self, member: _Member) -> None:
        member.stop_retry()
        self._dial_now(member)


class _Complaints:
    """Keeps repeated failures of one host from filling the log: one line for each host and period."""

    def __init__(self) -> None:
        self._hosts: dict[str, tuple[int, int]] = {}  # when a line is due again, and how many were not written

    def due(self, host: str, now_ms: int) -> int | None:
        """Returns how many lines were left out since the last one; None if this one is to be left out too."""
        due_ms, suppressed = self._hosts.get(host, (now_ms, 0))
        if now_ms < due_ms:
            self._hosts[host] = (due_ms, suppressed + 1)
            return None
        if len(self._hosts) >= COMPLAINTS_MAX:
            self._hosts.clear()
        self._hosts[host] = (now_ms + COMPLAINT_MS, 0)
        return suppressed
