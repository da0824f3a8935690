"""The bytes of the frames between a client's node and a queue's node. `remote_queue` describes the protocol.

Numbers are big-endian. A *run* of messages is packed so that it is unpacked with one slice a message and nothing else:

    count 4 | kinds: count bytes | stretches 4 | (messages 4 | length 2 | key) … | sizes | contents

Sizes are one number of four bytes if all contents are equally long (marked by its highest bit), else one for each.
Malformed bytes from another node raise `BadFrame`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, groupby, pairwise
from typing import Final, NamedTuple

from leveret.broker.delivery.publish_numbers import NAME_BYTES_MAX, Origin
from leveret.links.proposals import BadFrame

UNIFORM: Final = 0x8000_0000
COUNT_MAX: Final = 1 << 20

U8: Final = struct.Struct(">B")
U16: Final = struct.Struct(">H")
U32: Final = struct.Struct(">I")
U64: Final = struct.Struct(">Q")
BUNDLE: Final = struct.Struct(">QQ")  # Queue, token.
ORIGIN: Final = struct.Struct(">QQB")  # A producer's bundle: first and previous number, and the length of its name.
DELIVERY: Final = struct.Struct(">QQ")  # Subscription, first tag.
NUMBERED_DELIVERY: Final = struct.Struct(">QQQ")  # Subscription, first tag, number of the first message in its queue.
VERDICT: Final = struct.Struct(">BQQ")  # Verdict, first and last tag of the deliveries.
SAFE_ENTRY: Final = struct.Struct(">QBB")  # Token, multiple, refused.
TIME_ENTRY: Final = struct.Struct(">IQ")  # Index in its run of the first message that came at a time, and the time.
COUNT_ENTRY: Final = struct.Struct(">II")  # Index of a message in its run, how often it was requeued.
TAKEN_ENTRY: Final = struct.Struct(">QQ")  # Subscription, bytes in all.
LIMIT_ENTRY: Final = struct.Struct(">QI")  # Subscription, prefetch.
ASK_HEAD: Final = struct.Struct(">QQBQ")  # Index, number, what, queue.
# Subscription, no_ack, exclusive (`EXACT`: and exact), prefetch, priority; where in a stream it begins, 0: it is no
# stream.
SUBSCRIBE_HEAD: Final = struct.Struct(">QBBIqBq")
ANSWER_HEAD: Final = struct.Struct(">QH")  # Number, code of a refusal or 0.
STATUS_ANSWER: Final = struct.Struct(">QI")  # Ready, consumers.
GET_ANSWER: Final = struct.Struct(">QQ")  # Tag, how many remain.
REPLY_ANSWER: Final = struct.Struct(">QB")  # Number, whether a channel waits for replies there.
PASSED_HEAD: Final = struct.Struct(">QQQQ")  # Index, queue, epoch and number of the block up to which verdicts hold.
# A queue that a node served while detached: epoch, block and last message of what was applied there, and of all that
# it had.
DETACHED_HEAD: Final = struct.Struct(">QQQQQQ")

# Verdicts
ACKED: Final = 0
REQUEUED: Final = 1
DISCARDED: Final = 2
RETURNED: Final = 3  # Never delivered to the client: requeued as if it had not been sent.
# Verdicts on messages, by their numbers, from the former master of their queue:
OUT: Final = 4  # Unacknowledged.
FIRST_OUT: Final = 5  # Unacknowledged, and never delivered before that.
UNSEEN: Final = 6  # Never delivered, although blocks claim so.

# Questions
STATUS: Final = 1
PURGE: Final = 2
GET: Final = 3
SUBSCRIBE: Final = 4
CANCEL: Final = 5  # Ends a subscription; with `IN_ORDER` if its client stays and is to get what came before.
ADOPT: Final = 6  # Get ready to become a queue's node.
ABANDON: Final = 7  # The queue stays where it is.
BRING: Final = 8  # All messages of the queue have been sent: here are its marks.
DETACHED_RECORD: Final = 9  # The record of what clients of a detached node have settled: see `broker.mirrors.detached`.

IN_ORDER: Final = b"\x01"
EXACT: Final = 2  # The only consumer of its queue, to which numbers are told: see `Consumer.is_exact`.

# A code that is not AMQP's: the queue has moved to another node, of which the client's node will hear.
MOVED: Final = 1


class Messages(NamedTuple):
    """A run, unpacked."""

    contents: list[bytes]
    keys: list[bytes]
    kinds: bytearray


def pack_run(contents: Sequence[bytes], keys: Sequence[bytes], kinds: bytes | bytearray) -> list[bytes]:
    """Returns the run as buffers; contents are not copied."""
    count = len(contents)
    parts = [U32.pack(count), bytes(kinds)]
    if keys.count(keys[0]) == count:
        parts.append(struct.pack(f">IIH{len(keys[0])}s", 1, count, len(keys[0]), keys[0]))
    else:
        stretches = [(key, len(list(group))) for key, group in groupby(keys)]
        parts.append(U32.pack(len(stretches)))
        parts += [struct.pack(f">IH{len(key)}s", length, len(key), key) for key, length in stretches]
    sizes = list(map(len, contents))
    if sizes.count(sizes[0]) == count:
        parts.append(U32.pack(sizes[0] | UNIFORM))
    else:
        parts.append(struct.pack(f">{count}I", *sizes))
    parts += contents
    return parts


def unpack_run(data: bytes, at: int) -> tuple[Messages, int]:
    """Returns the run that begins at `at`, and where it ends. Raises `BadFrame`."""
    try:
        (count,) = U32.unpack_from(data, at)
        if not 0 < count <= COUNT_MAX:
            raise BadFrame(f"a run of {count} messages")
        at += 4
        kinds = bytearray(data[at : at + count])
        at += count
        (stretches,) = U32.unpack_from(data, at)
        at += 4
        keys: list[bytes] = []
        if stretches > count:
            raise BadFrame(f"{stretches} stretches of keys for {count} messages")
        for _ in range(stretches):
            messages, length = struct.unpack_from(">IH", data, at)
            at += 6
            if len(keys) + messages > count:
                raise BadFrame("more keys than messages")
            key = data[at : at + length]
            check_key(key, length)
            keys += [key] * messages
            at += length
        (size,) = U32.unpack_from(data, at)
        if size & UNIFORM:
            size -= UNIFORM
            at += 4
            end = at + size * count
            if end > len(data) or not size:
                raise BadFrame(f"{count} messages of {size} bytes")
            contents = [data[start : start + size] for start in range(at, end, size)]
        else:
            sizes = struct.unpack_from(f">{count}I", data, at)
            at += 4 * count
            ends = list(accumulate(sizes, initial=at))
            end = ends[-1]
            contents = [data[start:stop] for start, stop in pairwise(ends)]
    except struct.error as error:
        raise BadFrame(f"a run of messages that ends too early: {error}") from None
    if end > len(data) or len(keys) != count or len(contents) != count or len(kinds) != count:
        raise BadFrame("a run of messages that is not what its head says")
    return Messages(contents, keys, kinds), end


def pack_origin(origin: Origin) -> bytes:
    return ORIGIN.pack(origin.first, origin.previous, len(origin.producer)) + origin.producer


def unpack_origin(data: bytes, at: int) -> tuple[Origin, int]:
    """Returns the producer of the messages that follow, and where they begin. Raises `BadFrame`."""
    first, previous, length = unpack_one(ORIGIN, data, at)
    at += ORIGIN.size
    producer = data[at : at + length]
    if len(producer) != length or not 0 < length <= NAME_BYTES_MAX or previous >= first:
        raise BadFrame(f"messages from {first} on, after {previous}, of a producer with a name of {length} bytes")
    return Origin(producer, first, previous), at + length


def check_key(key: bytes, length: int) -> None:
    """Check that a key is two short strings and nothing else, of this length. Raises `BadFrame`."""
    middle = 1 + key[0] if key else 0
    if middle >= len(key) or middle + 1 + key[middle] != length:
        raise BadFrame("a key that is no exchange and routing key")


def unpack_all(entry: struct.Struct, data: bytes) -> list[tuple[int, ...]]:
    """Unpack a frame that is nothing but entries of one kind. Raises `BadFrame`."""
    if len(data) % entry.size:
        raise BadFrame(f"{len(data)} bytes of entries of {entry.size}")
    return list(entry.iter_unpack(data))


def unpack_verdicts(data: bytes) -> list[tuple[int, int, int]]:
    """Unpack verdicts on messages. Raises `BadFrame`, also for a range that ends before it begins."""
    verdicts = [(verdict, first, last) for verdict, first, last in unpack_all(VERDICT, data)]
    if any(first > last for _, first, last in verdicts):
        raise BadFrame("a verdict on no message")
    return verdicts


def unpack_one(entry: struct.Struct, data: bytes, at: int = 0) -> tuple[int, ...]:
    """Raises `BadFrame`."""
    if len(data) < at + entry.size:
        raise BadFrame(f"{len(data)} bytes, and {at + entry.size} are needed")
    return entry.unpack_from(data, at)
