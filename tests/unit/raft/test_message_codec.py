from __future__ import annotations

from random import Random

import pytest

from leveret.base.packing import BadMessage
from leveret.raft import message_codec
from leveret.raft.membership import Member, Membership, encode_membership
from leveret.raft.message_codec import decode_message, encode_message
from leveret.raft.messages import (
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

US = Membership((Member("id-a", "node a", "host:1", 7),), (Member("id-b", "nöde b", "[::1]:2"),))
ENTRIES = [
    Entry(8, 3, Kind.COMMAND, b"\x00\xff"),
    Entry(9, 3, Kind.MEMBERSHIP, encode_membership(US)),
    Entry(10, 5, Kind.NOOP, b""),
]
EVERY: list[Message] = [
    VoteRequest("a", "b", 5, True, 10, 4, False),
    VoteRequest("a", "b", 5, False, 0, 0, True),
    VoteResponse("a", "b", 5, False, True),
    Append("a", "b", 5, 7, 3, 6, ENTRIES),
    Append("a", "b", 5, 0, 0, 0, []),
    AppendResponse("a", "b", 5, False, 7, 5, 2, 4),
    Heartbeat("a", "b", 5, 6),
    HeartbeatResponse("a", "b", 5, 6),
    Applied("a", "b", 5, 6),
    SnapshotChunk("a", "b", 5, SnapshotMeta(6, 3, US), 10, 15, 0xDEADBEEF, b"hello"),
    SnapshotResponse("a", "b", 5, 6, 15),
    TimeoutNow("a", "b", 5),
]


@pytest.mark.parametrize("message", EVERY, ids=lambda one: type(one).__name__)
def test_round_trip(message: Message) -> None:
    assert decode_message(encode_message(message)) == message


def test_every_type_is_here() -> None:
    assert {type(message) for message in EVERY} == set(message_codec._ENCODERS)


@pytest.mark.parametrize("message", EVERY, ids=lambda one: type(one).__name__)
def test_too_short_and_too_long(message: Message) -> None:
    data = encode_message(message)
    for end in range(len(data)):
        with pytest.raises(BadMessage):
            decode_message(data[:end])
    with pytest.raises(BadMessage):
        decode_message(data + b"\x00")


@pytest.mark.parametrize("message", EVERY, ids=lambda one: type(one).__name__)
def test_garbage_is_a_bad_message_and_nothing_else(message: Message) -> None:
    rng = Random(1)
    data = encode_message(message)
    refused = 0
    for _ in range(500):
        broken = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            broken[rng.randrange(len(broken))] = rng.choice((0, 1, 255, rng.randrange(256)))
        try:
            decoded = decode_message(bytes(broken))
        except BadMessage:
            refused += 1
        else:
            assert encode_message(decoded) == broken  # One message has one form.
    assert refused > 0


def forged(**changes: object) -> Append:
    message = Append("a", "b", 5, 7, 3, 6, list(ENTRIES))
    for key, value in changes.items():
        setattr(message, key, value)
    return message


@pytest.mark.parametrize(
    "message",
    [
        forged(term=4),  # Older than its entries.
        forged(prev_term=4),  # Newer than the entry after it.
        forged(prev_term=0),
        forged(prev_index=0),
        forged(sender=""),
        forged(sender="a b"),
        forged(to="x" * 65),
        forged(term=0),
        forged(commit=1 << 63),
        forged(entries=[Entry(8, 0, Kind.COMMAND, b"")]),
        forged(entries=[Entry(8, 3, Kind.MEMBERSHIP, b"")]),
        forged(entries=[Entry(8, 3, Kind.MEMBERSHIP, encode_membership(Membership()))]),
        SnapshotChunk("a", "b", 5, SnapshotMeta(0, 3, US), 0, 5, 0, b"hello"),
        SnapshotChunk("a", "b", 5, SnapshotMeta(6, 6, US), 0, 5, 0, b"hello"),
        SnapshotChunk("a", "b", 5, SnapshotMeta(6, 3, US), 1, 5, 0, b"hello"),
        SnapshotChunk("a", "b", 5, SnapshotMeta(6, 3, Membership()), 0, 5, 0, b"hello"),
        VoteRequest("a", "b", 5, False, 10, 5),
    ],
)
def test_what_makes_no_sense_is_refused(message: Message) -> None:
    with pytest.raises(BadMessage):
        decode_message(encode_message(message))


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_codec, "ENTRIES_MAX", 2)
    data = encode_message(forged())
    with pytest.raises(BadMessage, match="3 entries; at most 2"):
        decode_message(data)
    monkeypatch.setattr(message_codec, "ENTRY_BYTES_MAX", 1)
    with pytest.raises(BadMessage, match=r"2 bytes at byte .*; at most 1"):
        decode_message(encode_message(forged(entries=ENTRIES[:1])))
    monkeypatch.setattr(message_codec, "MESSAGE_BYTES_MAX", 10)
    with pytest.raises(BadMessage, match="at most 10"):
        decode_message(data)
    with pytest.raises(ValueError, match="at most 10"):
        encode_message(forged())


def test_a_chunk_that_nobody_filled_in_does_not_leave() -> None:
    with pytest.raises(ValueError, match="nobody has filled in"):
        encode_message(SnapshotChunk("a", "b", 5, SnapshotMeta(6, 3, US), 0))


def test_another_version_is_refused() -> None:
    data = encode_message(EVERY[0])
    with pytest.raises(BadMessage, match="version 2"):
        decode_message(b"\x02" + data[1:])
    with pytest.raises(BadMessage, match="unknown type 99"):
        decode_message(data[:1] + b"\x63" + data[2:])
