"""Raft's messages as bytes, and back.

    version u8 | type u8 | sender text | to text | term u64 | fields of the type

A text is one byte of length and UTF-8. Numbers are big-endian. Entries of an append carry no index: they follow each
other from the one after `prev_index`.

Reading is strict, so that the machine can rely on a decoded message: indexes without gaps, terms that never fall and
never exceed the message's, memberships that can be decoded. Anything else is a `BadMessage`, and the shell closes the
link.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from leveret.base.packing import BadMessage, Reader, pack_text
from leveret.raft.membership import decode_membership, encode_membership, is_id, read_membership
from leveret.raft.messages import (
    CHUNK_BYTES_MAX,
    ENTRIES_MAX,
    ENTRY_BYTES_MAX,
    Append,
    AppendResponse,
    Applied,
    Entry,
    Heartbeat,
    HeartbeatResponse,
    Kind,
    Message,
    SnapshotChunk,
    SnapshotMeta,
    SnapshotResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)

VERSION: Final = 1
MESSAGE_BYTES_MAX: Final = 2 * ENTRY_BYTES_MAX
NUMBER_MAX: Final = 1 << 62  # Far above any real term or index; adding to it cannot overflow.

_VOTE: Final = struct.Struct(">BQQB")
_APPEND: Final = struct.Struct(">QQQI")
_APPEND_RESPONSE: Final = struct.Struct(">BQQQQ")
_ENTRY: Final = struct.Struct(">QBI")
_CHUNK: Final = struct.Struct(">QQQII")
_PAIR: Final = struct.Struct(">QQ")
_RESERVED: Final = 0  # A number in heartbeats and their answers that has no meaning yet.
_KINDS: Final = {int(kind): kind for kind in Kind}

Head = tuple[str, str, int]


def encode_message(message: Message) -> bytes:
    number, encode = _ENCODERS[type(message)]
    head = (bytes((VERSION, number)), pack_text(message.sender), pack_text(message.to), message.term.to_bytes(8, "big"))
    data = b"".join((*head, *encode(message)))
    if len(data) > MESSAGE_BYTES_MAX:
        raise ValueError(f"a message of {len(data)} bytes; at most {MESSAGE_BYTES_MAX} are allowed")
    return data


def decode_message(data: bytes) -> Message:
    """Return the message in some bytes. Raises `BadMessage`."""
    if len(data) > MESSAGE_BYTES_MAX:
        raise BadMessage(f"{len(data)} bytes; at most {MESSAGE_BYTES_MAX} are allowed")
    reader = Reader(data)
    if (version := reader.u8()) != VERSION:
        raise BadMessage(f"version {version} of the format; this node speaks {VERSION}")
    decode = _DECODERS.get(number := reader.u8())
    if decode is None:
        raise BadMessage(f"unknown type {number}")
    sender, to, term = reader.text(), reader.text(), _number(reader)
    if not is_id(sender) or not is_id(to):
        raise BadMessage("sender or receiver is no id")
    if term == 0:
        raise BadMessage("nothing is sent in term 0")
    message = decode(reader, (sender, to, term))
    reader.end()
    return message


def _number(reader: Reader) -> int:
    value = reader.u64()
    if value > NUMBER_MAX:
        raise BadMessage(f"{value} is no index, term or size")
    return value


def _check_reserved(reader: Reader) -> None:
    if (value := reader.u64()) != _RESERVED:
        raise BadMessage(f"{value} where 0 is reserved")


# Encoding


def _encode_vote_request(m: VoteRequest) -> list[bytes]:
    return [_VOTE.pack(m.pre, m.last_index, m.last_term, m.forced)]


def _encode_vote_response(m: VoteResponse) -> list[bytes]:
    return [bytes((m.pre, m.granted))]


def _encode_append(m: Append) -> list[bytes]:
    parts = [_APPEND.pack(m.prev_index, m.prev_term, m.commit, len(m.entries))]
    for entry in m.entries:
        parts.append(_ENTRY.pack(entry.term, entry.kind, len(entry.data)))
        parts.append(entry.data)
    return parts


def _encode_append_response(m: AppendResponse) -> list[bytes]:
    return [_APPEND_RESPONSE.pack(m.accepted, m.index, m.hint, m.hint_term, m.applied)]


def _encode_heartbeat(m: Heartbeat) -> list[bytes]:
    return [_PAIR.pack(m.commit, _RESERVED)]


def _encode_heartbeat_response(m: HeartbeatResponse) -> list[bytes]:
    return [_PAIR.pack(_RESERVED, m.applied)]


def _encode_applied(m: Applied) -> list[bytes]:
    return [m.applied.to_bytes(8, "big")]


def _encode_chunk(m: SnapshotChunk) -> list[bytes]:
    if not m.total:
        raise ValueError("a chunk that nobody has filled in")
    head = _CHUNK.pack(m.meta.index, m.meta.term, m.offset, m.checksum, len(m.data))
    return [head, m.total.to_bytes(8, "big"), m.data, encode_membership(m.meta.membership)]


def _encode_snapshot_response(m: SnapshotResponse) -> list[bytes]:
    return [_PAIR.pack(m.index, m.received)]


def _encode_timeout_now(m: TimeoutNow) -> list[bytes]:
    return []


# Decoding


def _decode_vote_request(reader: Reader, head: Head) -> VoteRequest:
    message = VoteRequest(*head, reader.flag(), _number(reader), _number(reader), reader.flag())
    if message.last_term >= message.term:
        raise BadMessage("a candidate's log is older than its term")
    return message


def _decode_vote_response(reader: Reader, head: Head) -> VoteResponse:
    return VoteResponse(*head, reader.flag(), reader.flag())


def _decode_append(reader: Reader, head: Head) -> Append:
    prev_index, last_term, commit, count = _number(reader), _number(reader), _number(reader), reader.u32()
    prev_term, term_max = last_term, head[2]
    if count > ENTRIES_MAX:
        raise BadMessage(f"{count} entries; at most {ENTRIES_MAX} are allowed")
    entries = []
    for index in range(prev_index + 1, prev_index + 1 + count):
        term, kind, size = _number(reader), reader.u8(), reader.u32()
        if kind not in _KINDS or not 1 <= term <= term_max or term < last_term:
            raise BadMessage(f"entry {index} of kind {kind} and term {term} after term {last_term}")
        data = reader.blob(size, ENTRY_BYTES_MAX)
        if kind == Kind.MEMBERSHIP and not decode_membership(data).voters:
            raise BadMessage(f"entry {index} leaves no voter")
        entries.append(Entry(index, term, _KINDS[kind], data))
        last_term = term
    if last_term > term_max or (prev_index == 0) != (prev_term == 0):
        raise BadMessage(f"entries after index {prev_index} and term {prev_term} in term {term_max}")
    return Append(*head, prev_index, prev_term, commit, entries)


def _decode_append_response(reader: Reader, head: Head) -> AppendResponse:
    accepted, index, hint = reader.flag(), _number(reader), _number(reader)
    return AppendResponse(*head, accepted, index, hint, _number(reader), _number(reader))


def _decode_heartbeat(reader: Reader, head: Head) -> Heartbeat:
    commit = _number(reader)
    _check_reserved(reader)
    return Heartbeat(*head, commit)


def _decode_heartbeat_response(reader: Reader, head: Head) -> HeartbeatResponse:
    _check_reserved(reader)
    return HeartbeatResponse(*head, _number(reader))


def _decode_applied(reader: Reader, head: Head) -> Applied:
    return Applied(*head, _number(reader))


def _decode_chunk(reader: Reader, head: Head) -> SnapshotChunk:
    index, term, offset = _number(reader), _number(reader), _number(reader)
    checksum, size, total = reader.u32(), reader.u32(), _number(reader)
    data = reader.blob(size, CHUNK_BYTES_MAX)
    membership = read_membership(reader)
    if index == 0 or not 1 <= term <= head[2] or offset + size > total or not total or not membership.voters:
        raise BadMessage(f"{size} bytes at {offset} of {total}, of a snapshot at index {index} and term {term}")
    return SnapshotChunk(*head, SnapshotMeta(index, term, membership), offset, total, checksum, data)


def _decode_snapshot_response(reader: Reader, head: Head) -> SnapshotResponse:
    return SnapshotResponse(*head, _number(reader), _number(reader))


def _decode_timeout_now(reader: Reader, head: Head) -> TimeoutNow:
    return TimeoutNow(*head)


_ENCODERS: Final[dict[type, tuple[int, Callable[..., list[bytes]]]]] = {
    VoteRequest: (1, _encode_vote_request),
    VoteResponse: (2, _encode_vote_response),
    Append: (3, _encode_append),
    AppendResponse: (4, _encode_append_response),
    Heartbeat: (5, _encode_heartbeat),
    HeartbeatResponse: (6, _encode_heartbeat_response),
    Applied: (7, _encode_applied),
    SnapshotChunk: (8, _encode_chunk),
    SnapshotResponse: (9, _encode_snapshot_response),
    TimeoutNow: (10, _encode_timeout_now),
}
_DECODERS: Final[dict[int, Callable[[Reader, Head], Message]]] = {
    1: _decode_vote_request,
    2: _decode_vote_response,
    3: _decode_append,
    4: _decode_append_response,
    5: _decode_heartbeat,
    6: _decode_heartbeat_response,
    7: _decode_applied,
    8: _decode_chunk,
    9: _decode_snapshot_response,
    10: _decode_timeout_now,
}
