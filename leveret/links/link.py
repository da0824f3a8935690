"""One TCP connection between two nodes: authentication and framing.

A pair of nodes has two connections, one for each direction: every node *dials* each other node for what it sends
itself, and *accepts* what the others send. So no two nodes ever have to choose between two crossing connections. The
accepting end may answer (heartbeats, the answer to a call), but a node sends its own traffic on the connection that it
dialed.

    frame:  payload size 4 | kind 1 | payload

Kinds below FIRST_KIND are the link's own, all others are its users'. There is no checksum: TCP has one, TLS a better
one, and data for the disk has its own.

The handshake

    dialer                                          acceptor
    HELLO role, purpose, versions, limit,
          nonce, uuid, cluster, name     ------->
                                         <-------   HELLO the same
    PROOF of the dialer                  ------->
                                         <-------   PROOF of the acceptor

A proof is HMAC-SHA256, keyed with the cookie, over the prover's role and both HELLOs as they were sent. Therefore:

- The cookie is never sent, and a recorded handshake is useless: the other end's nonce is new each time.
- A proof cannot be sent back to its maker, on this connection or another: an end expects a proof of the other role,
  over HELLOs of which one is its own.
- No part of the HELLOs (versions, names) can be changed on the way, since the proofs cover all of it.
- The dialer proves first. A stranger who connects learns a node's name, but gets no proof to guess cookies against.

Frames after the handshake are neither encrypted nor signed, so an attacker on the wire can wait for the handshake and
then forge frames. Use TLS with node certificates on networks where that can happen.

Until both proofs are checked, a frame has at most GREETING_BYTES_MAX bytes and only the handshake is accepted, within a
time limit. An end that refuses the other sends the reason with REFUSAL, because the operator with the wrong cookie does
not read the log of this end.

Any error results in one `Failed` event, never in an exception, and the machine ignores all later input. Times are the
caller's milliseconds. Nonces come from the caller and must be unpredictable.

Batching: `send` only collects frames. `take` returns all since the last call as few buffers: small parts joined, large
ones as they are, so that a large payload is never copied here. In the other direction, all frames that one `receive`
completed are one event, and a payload that arrived in pieces is joined by a single copy.

Heartbeats: an end that has sent nothing for `heartbeat_ms` sends one. To wake up for a few bytes costs an idle node
more than the bytes, so quiet ends beat together: one that receives something and has sent nothing for two thirds of
that time beats now, and need not do it later, when the other end sleeps again (`beat_along`). There is no endless
exchange: the end that began has just sent something.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

Buffer = bytes | bytearray | memoryview

# Version 2 has other frames for filling mirrors, policies and publishes in doubt. A node of version 1 would misread
# them, so the two refuse each other in the handshake.
VERSION_MIN: Final = 2
# Version 3 has commands about clients of MQTT. A node of version 2 stops at them, so none is proposed while there is a
# link to such a node: see `broker.client_ids`.
VERSION_OF_MQTT: Final = 3
# Version 4 has pieces for mirrors that name messages which may have been delivered. An older node takes some of them
# for damaged and closes the link, so it gets them without these names: see `replication.frame_codec`.
VERSION_OF_REQUEUED: Final = 4
VERSION_MAX: Final = 4

DIALER: Final = 1
ACCEPTOR: Final = 2

# The purpose of a connection: a member's traffic, or one call by any node or tool.
TRAFFIC: Final = 1
CALL: Final = 2

HELLO: Final = 1
PROOF: Final = 2
REFUSAL: Final = 3
HEARTBEAT: Final = 4
PAIR: Final = 5
FIRST_KIND: Final = 16
KIND_MAX: Final = 255

NONCE_BYTES: Final = 32
UUID_BYTES: Final = 16
NAME_BYTES_MAX: Final = 255
REFUSAL_BYTES_MAX: Final = 512
GREETING_BYTES_MAX: Final = 1024
FRAME_BYTES_MAX: Final = (16 << 20) + (64 << 10)  # A batch of 16 MiB and its envelope.

# Parts at least this large are not joined with others: copying them would cost as much as a system call.
LARGE_BYTES: Final = 64 << 10
# Pieces of a frame are joined when there are so many, since each costs memory of its own.
PIECES_MAX: Final = 4096

# The reasons for which a link fails.
GARBAGE: Final = "garbage"
OVERSIZE: Final = "oversize"
VERSION: Final = "version"
COOKIE: Final = "cookie"
CLUSTER: Final = "cluster"
SELF: Final = "self"
NAME: Final = "name"
TIMEOUT: Final = "timeout"
REFUSED: Final = "refused"

_HEAD: Final = struct.Struct(">IB")
_HEAD_BYTES: Final = 5
_MAGIC: Final = b"LVRT"
_HELLO: Final = struct.Struct(">4sBBHHI32s16s16s")
_NO_CLUSTER: Final = bytes(UUID_BYTES)
_BEAT: Final = _HEAD.pack(0, HEARTBEAT)
_LABEL: Final = b"leveret peer link\x00"

# States
_GREETING: Final = 0  # Waits for the other's HELLO.
_PROVING: Final = 1  # Waits for the other's PROOF.
_READY: Final = 2
_CLOSED: Final = 3


class TooLarge(ValueError):
    """The other end does not accept frames of this size, though this end does."""


class Identity(NamedTuple):
    """The identity of an end."""

    name: str
    uuid: bytes  # Of the incarnation: a node whose data was wiped has another.
    cluster: bytes = b""  # The cluster's uuid; b"": none yet, or not a node.


class LinkOptions(NamedTuple):
    """Times and limits of a link."""

    frame_bytes_max: int = FRAME_BYTES_MAX  # Of a received payload.
    greeting_ms: int = 5_000
    heartbeat_ms: int = 1_000
    versions: tuple[int, int] = (VERSION_MIN, VERSION_MAX)


@dataclass(frozen=True, slots=True)
class Ready:
    """Both proofs are valid: frames may be sent from now on."""

    peer: Identity
    purpose: int
    version: int


@dataclass(frozen=True, slots=True)
class Frames:
    """Complete frames, in order: kind and payload."""

    frames: list[tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class Paired:
    """The other end has paired this link with the one with the id `link`. See `failure_detector`."""

    link: bytes


@dataclass(frozen=True, slots=True)
class Failed:
    """The link has failed. `text` is for display, without control characters."""

    reason: str
    text: str


Event = Ready | Frames | Paired | Failed


class Link:
    """One end of one connection."""

    __slots__ = (
        "role",
        "purpose",
        "me",
        "options",
        "peer",
        "version",
        "id",  # The same at both ends and unique; b"" until both HELLOs are known.
        "out",  # Buffers to be sent, in order.
        "out_bytes",
        "heard_ms",  # When bytes last arrived.
        "send_bytes_max",  # The largest payload that the other end accepts.
        "_cookie",
        "_nonce",
        "_hello",
        "_transcript",
        "_state",
        "_frame_max",
        "_deadline_ms",
        "_ticked_ms",
        "_sent_ms",
        "_has_large",
        "_rest",
        "_pieces",
        "_kind",
        "_missing",
    )

    def __init__(
        self,
        role: int,
        me: Identity,
        cookie: bytes,
        nonce: bytes,
        now_ms: int,
        options: LinkOptions = LinkOptions(),  # noqa: B008 (immutable)
        purpose: int = TRAFFIC,
    ) -> None:
        if not cookie:
            raise ValueError("an empty cookie proves nothing")
        if len(nonce) != NONCE_BYTES:
            raise ValueError(f"a nonce has {NONCE_BYTES} bytes")
        self.role = role
        self.purpose = purpose
        self.me = me
        self.options = options
        self.peer: Identity | None = None
        self.version = 0
        self.id = b""
        self.out: list[Buffer] = []
        self.out_bytes = 0
        self.heard_ms = now_ms
        self.send_bytes_max = GREETING_BYTES_MAX
        self._cookie = cookie
        self._nonce = nonce
        self._hello = b""
        self._transcript = b""
        self._state = _GREETING
        self._frame_max = GREETING_BYTES_MAX
        self._deadline_ms = now_ms + options.greeting_ms
        self._ticked_ms = now_ms
        self._sent_ms = now_ms
        self._has_large = False
        self._rest = b""  # Of a frame's head that has not arrived completely.
        self._pieces: list[bytes | memoryview] = []  # Of a payload that has not arrived completely.
        self._kind = 0
        self._missing = 0  # Bytes of that payload that have not arrived.
        self._hello = self._make_hello()
        if role == DIALER:
            self._control(HELLO, self._hello)

    @property
    def is_ready(self) -> bool:
        return self._state == _READY

    @property
    def is_closed(self) -> bool:
        return self._state == _CLOSED

    # -- Sending -------------------------------------------------------------------------------------------------

    def send(self, kind: int, payload: bytes | Sequence[Buffer]) -> None:
        """Collect a frame. Parts that can change (bytearray, memoryview) must not do so until they are written.

        To send too early, too much, or a kind of the link's own is an error of the caller. Frames for a closed link are
        dropped: the same bytes may bring `Ready` and then `Failed`, and the caller sees the one before the other.
        """
        parts: Sequence[Buffer] = (payload,) if isinstance(payload, bytes) else payload
        size = 0
        for part in parts:
            size += part.nbytes if isinstance(part, memoryview) else len(part)
        if self._state != _READY or size > self.send_bytes_max or not FIRST_KIND <= kind <= KIND_MAX:
            if self._state == _CLOSED:
                return
            is_theirs = self._state == _READY and self.send_bytes_max < size <= self.options.frame_bytes_max
            raise (TooLarge if is_theirs else ValueError)(self._why_not(kind, size))
        out = self.out
        out.append(_HEAD.pack(size, kind))
        out.extend(parts)
        self.out_bytes += _HEAD_BYTES + size
        if size >= LARGE_BYTES:
            self._has_large = True

    def pair(self, link: bytes) -> None:
        """Tell the other end that this link and the one with this id are one session."""
        assert self._state >= _READY  # Only links that are ready are paired.
        if self._state == _READY:
            self._control(PAIR, link)

    def refuse(self, text: str) -> None:
        """Refuse the other end, with a reason. Later input is ignored; `take` returns what is left to send."""
        if self._state != _CLOSED:
            self._control(REFUSAL, text.encode("utf-8", "replace")[:REFUSAL_BYTES_MAX])
            self.close()

    def take(self, now_ms: int = 0) -> list[Buffer]:
        """Return all collected frames as few buffers. Without a time, it is that of the last tick."""
        out = self.out
        if not out:
            return []
        self.out = []
        self.out_bytes = 0
        self._sent_ms = max(now_ms, self._ticked_ms)
        if not self._has_large:
            return [b"".join(out)]
        self._has_large = False
        return _merge(out)

    def _why_not(self, kind: int, size: int) -> str:
        if self._state != _READY:
            return "the link is not ready"
        if size > self.send_bytes_max:
            return f"a frame of {size} bytes; the other end takes at most {self.send_bytes_max}"
        return f"{kind} is not a kind of frame that can be sent"

    def _control(self, kind: int, payload: bytes) -> None:
        frame = _HEAD.pack(len(payload), kind) + payload
        self.out.append(frame)
        self.out_bytes += len(frame)

    # -- Time ----------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> list[Event]:
        """Advance the time. Call it at least once in each `heartbeat_ms`, then `take`: there may be a heartbeat."""
        self._ticked_ms = now_ms
        if self._state == _READY:
            if not self.out and now_ms - self._sent_ms >= self.options.heartbeat_ms:
                self._beat()
        elif self._state != _CLOSED and now_ms >= self._deadline_ms:
            return [self._fail(TIMEOUT, f"no complete greeting within {self.options.greeting_ms} ms")]
        return []

    def beat_along(self, now_ms: int) -> None:
        """Collect a heartbeat that is not due yet, if it soon is: the other end is awake anyway."""
        quiet_ms = now_ms - self._sent_ms
        if quiet_ms >= self.options.heartbeat_ms * 2 // 3 and self._state == _READY and not self.out:
            self._beat()

    def _beat(self) -> None:
        self.out.append(_BEAT)
        self.out_bytes += _HEAD_BYTES

    def silent_ms(self, now_ms: int) -> int:
        """Return for how long nothing has arrived."""
        return now_ms - self.heard_ms

    def close(self) -> None:
        """Ignore all later input."""
        self._state = _CLOSED
        self._rest = b""
        self._pieces = []
        self._missing = 0

    # -- Receiving -----------------------------------------------------------------------------------------------

    def receive(self, data: bytes, now_ms: int = 0) -> list[Event]:
        """Handle the next bytes, and return the events that they complete; then `take`: there may be a heartbeat.
        Without a time, it is that of the last tick."""
        if self._state == _CLOSED or not data:
            return []
        self.heard_ms = now_ms = max(now_ms, self._ticked_ms)
        events: list[Event] = []
        frames: list[tuple[int, bytes]] = []
        at = 0
        if self._missing:
            at = self._missing
            if len(data) < at:
                self._gather(data)
                return events
            self._pieces.append(memoryview(data)[:at])
            payload = b"".join(self._pieces)
            self._pieces = []
            self._missing = 0
            if self._kind >= FIRST_KIND and self._state == _READY:
                frames.append((self._kind, payload))
            else:
                self._on_control(self._kind, payload, events)
                if self._state == _CLOSED:
                    return events
        elif self._rest:
            data = self._rest + data
            self._rest = b""
        self._parse(data, at, frames, events)
        if self.purpose == TRAFFIC:
            self.beat_along(now_ms)
        return events

    def _parse(self, data: bytes, at: int, frames: list[tuple[int, bytes]], events: list[Event]) -> None:
        """Add the frames that end in `data`, and keep the start of the last one if it does not."""
        unpack = _HEAD.unpack_from
        append = frames.append
        end, frame_max = len(data), self._frame_max
        while at + _HEAD_BYTES <= end:
            size, kind = unpack(data, at)
            at += _HEAD_BYTES
            if size > frame_max:
                self._flush_frames(frames, events)
                events.append(self._too_large(size))
                return
            stop = at + size
            if stop > end:
                self._kind = kind
                self._missing = stop - end
                self._pieces = [memoryview(data)[at:]]
                at = end
                break
            if kind >= FIRST_KIND and self._state == _READY:
                append((kind, data[at:stop]))
            else:
                self._flush_frames(frames, events)
                frames = []
                append = frames.append
                self._on_control(kind, data[at:stop], events)
                if self._state == _CLOSED:
                    return
                frame_max = self._frame_max
            at = stop
        if at < end:
            self._rest = data[at:]
        self._flush_frames(frames, events)

    def _gather(self, data: bytes) -> None:
        self._pieces.append(data)
        self._missing -= len(data)
        if len(self._pieces) >= PIECES_MAX:
            self._pieces = [b"".join(self._pieces)]

    @staticmethod
    def _flush_frames(frames: list[tuple[int, bytes]], events: list[Event]) -> None:
        if frames:
            events.append(Frames(frames))

    def _on_control(self, kind: int, payload: bytes, events: list[Event]) -> None:
        """Handle a frame of the link's own, or one that came too early."""
        if kind == HEARTBEAT and self._state == _READY and not payload:
            return
        if kind == REFUSAL:
            own = self.peer is not None and (self.peer.name, self.peer.uuid) == (self.me.name, self.me.uuid)
            events.append(self._fail(SELF if own else REFUSED, _printable(payload), tell=False))
        elif kind == HELLO and self._state == _GREETING:
            self._on_hello(payload, events)
        elif kind == PROOF and self._state == _PROVING:
            self._on_proof(payload, events)
        elif kind == PAIR and self._state == _READY and len(payload) == UUID_BYTES:
            events.append(Paired(payload))
        elif self._state == _READY:
            events.append(self._fail(GARBAGE, f"a frame of kind {kind} with {len(payload)} bytes has no meaning"))
        else:
            events.append(self._fail(GARBAGE, f"a frame of kind {kind} in the greeting"))

    def _too_large(self, size: int) -> Failed:
        if self._state == _READY:
            return self._fail(OVERSIZE, f"a frame of {size} bytes; at most {self._frame_max} are taken")
        return self._fail(GARBAGE, "what arrived is not the greeting of a node")

    def _fail(self, reason: str, text: str, tell: bool = True) -> Failed:
        if tell:
            self.refuse(text)
        else:
            self.close()
        return Failed(reason, text)

    # -- The handshake -------------------------------------------------------------------------------------------

    def _make_hello(self) -> bytes:
        name = self.me.name.encode()
        cluster = self.me.cluster or _NO_CLUSTER
        if not 0 < len(name) <= NAME_BYTES_MAX or len(self.me.uuid) != UUID_BYTES or len(cluster) != UUID_BYTES:
            raise ValueError(f"{self.me} cannot introduce itself")
        low, high = self.options.versions
        limit = self.options.frame_bytes_max
        head = _HELLO.pack(
            _MAGIC, self.role, self.purpose, low, high, limit, self._nonce, self.me.uuid, cluster
        )  # fmt: skip
        return head + bytes((len(name),)) + name

    def _on_hello(self, payload: bytes, events: list[Event]) -> None:
        """Handle the other end's HELLO. Later versions may append to it; the proofs cover that, and it is ignored."""
        at = _HELLO.size
        if len(payload) <= at or len(payload) <= at + payload[at] or not payload.startswith(_MAGIC):
            events.append(self._fail(GARBAGE, "what arrived is not the greeting of a node"))
            return
        _, role, purpose, low, high, limit, nonce, uuid, cluster = _HELLO.unpack_from(payload)
        name = _name(payload[at + 1 : at + 1 + payload[at]])
        if role + self.role != DIALER + ACCEPTOR or nonce == self._nonce:
            events.append(self._fail(GARBAGE, "the greeting is for the other end of a link"))
            return
        mine = self.options.versions
        self.version = min(high, mine[1])
        if self.version < max(low, mine[0]):
            text = f"no version of the protocol in common: {low} to {high} there, {mine[0]} to {mine[1]} here"
            events.append(self._fail(VERSION, text))
            return
        is_known = purpose in (TRAFFIC, CALL) and (self.role == ACCEPTOR or purpose == self.purpose)
        if name is None or not is_known or limit < GREETING_BYTES_MAX:
            events.append(self._fail(GARBAGE, "the greeting makes no sense"))
            return
        self.purpose = purpose
        self.peer = Identity(name, uuid, b"" if cluster == _NO_CLUSTER else cluster)
        self.send_bytes_max = limit
        self._answer_hello(payload)

    def _answer_hello(self, theirs: bytes) -> None:
        if self.role == ACCEPTOR:
            self._hello = self._make_hello()  # It has the purpose that the dialer chose.
            self._control(HELLO, self._hello)
        first, second = (self._hello, theirs) if self.role == DIALER else (theirs, self._hello)
        self._transcript = b"".join((len(first).to_bytes(4, "big"), first, len(second).to_bytes(4, "big"), second))
        self.id = hashlib.sha256(self._transcript).digest()[:UUID_BYTES]
        self._state = _PROVING
        if self.role == DIALER:
            self._control(PROOF, self._proof(DIALER))

    def _on_proof(self, payload: bytes, events: list[Event]) -> None:
        if not hmac.compare_digest(payload, self._proof(DIALER + ACCEPTOR - self.role)):
            events.append(self._fail(COOKIE, "authentication failed: the two nodes have different cookies"))
            return
        peer = self.peer
        assert peer is not None  # The HELLO has set it.
        misfit = self._misfit(peer)
        if misfit is not None:
            events.append(self._fail(*misfit))
            return
        if self.role == ACCEPTOR:
            self._control(PROOF, self._proof(ACCEPTOR))
        self._state = _READY
        self._frame_max = self.options.frame_bytes_max
        events.append(Ready(peer, self.purpose, self.version))

    def _proof(self, role: int) -> bytes:
        return hmac.digest(self._cookie, b"".join((_LABEL, bytes((role,)), self._transcript)), "sha256")

    def _misfit(self, peer: Identity) -> tuple[str, str] | None:
        """Return why two ends with the same cookie cannot be linked; None if they can. Strangers are not told."""
        if peer.uuid == self.me.uuid and peer.name == self.me.name:
            return SELF, "this is the node's own address"
        if peer.uuid == self.me.uuid:
            return NAME, f"{peer.name} and {self.me.name} have one identity: was a data folder copied?"
        if self.purpose == CALL:
            return None
        if peer.name == self.me.name:
            return NAME, f"both nodes are named {peer.name}"
        if peer.cluster and self.me.cluster and peer.cluster != self.me.cluster:
            return CLUSTER, f"{peer.name} and {self.me.name} belong to different clusters"
        return None


def _name(raw: bytes) -> str | None:
    """Return a name that can be displayed; None if the bytes are not one."""
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return name if name and name.isprintable() else None


def _printable(raw: bytes) -> str:
    """Return a text from the other end fit for a log: no line breaks, no escape sequences, not long."""
    text = raw[:REFUSAL_BYTES_MAX].decode("utf-8", "replace")
    return "".join(each if each.isprintable() else "?" for each in text) or "refused"


def _merge(parts: list[Buffer]) -> list[Buffer]:
    """Return the same bytes in order: runs of small parts joined, large ones untouched."""
    merged: list[Buffer] = []
    small: list[Buffer] = []
    for part in parts:
        if len(part) < LARGE_BYTES:
            small.append(part)
        else:
            if small:
                merged.append(b"".join(small))
                small = []
            merged.append(part)
    if small:
        merged.append(b"".join(small))
    return merged
