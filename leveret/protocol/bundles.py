"""Bundles: many messages of one queue in one frame, between two Leverets that have agreed on it.

A shovel moves messages that a Leveret has stored, as they are, to another one that stores them as they are. A method
frame, and an origin of eighty bytes, for each of them would cost both brokers more than the messages do. A bundle has
all of that once. It is a frame of its own type, on the channel of the consumer or publisher, and within `frame_max`:

    delivery:  tag 8 | redelivered 1 | exchange, routing key | bundle
    publish:   exchange, routing key | flags 1 | bundle
    bundle:    source 66 | number 8 | count 4 | sizes, 4 each | contents

The messages have the delivery tags, the publish numbers and the numbers of their origin (`leveret.protocol.origins`)
that begin with the one named and follow each other. So they are acknowledged and confirmed like any others. The number
has the mark of an origin if all of them may have been brought before.

A broker that takes bundles says so among its capabilities (`leveret_bundles`). It sends them to a consumer that asked
with the argument `x-leveret-bundles`, and takes them from a client with the property `leveret_origins`. Nothing of the
contents is believed: `rows_of` checks frames and properties, as those of single publishes are checked. Mostly the
messages of a bundle differ in their bodies only, and all but the first cost a comparison.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, pairwise
from operator import methodcaller
from struct import Struct, pack
from typing import Final, NamedTuple

from leveret.protocol.frames import BODY, END, END_BYTE, HEAD, HEADER, HEADER_AT, OVERHEAD
from leveret.protocol.header_shapes import HeaderShapes
from leveret.protocol.origins import MARK, SOURCE_BYTES, is_source
from leveret.protocol.properties import BASIC_CLASS, BadProperties, survey

BUNDLE: Final = 76  # The type of the frame.
CAPABILITY: Final = "leveret_bundles"
ARGUMENT: Final = "x-leveret-bundles"
ROUTE_BYTES_MAX: Final = 2 * 256
BYTES_MAX: Final = 1 << 16  # Of contents in a bundle: with a few of them under way, both ends have something to do.
CHANNEL: Final = b"\x00\x01"
_BASIC: Final = pack(">HH", BASIC_CLASS, 0)
_TAG: Final = Struct(">QB")
_NUMBERS: Final = Struct(">QI")
_SIZE: Final = Struct(">I")
_SIZES_AT: Final = SOURCE_BYTES + _NUMBERS.size


class BadBundle(ValueError):
    """Bytes are not a bundle. The text is for people."""


class Bundle(NamedTuple):
    """Messages of one source, with numbers in a row."""

    source: bytes
    first: int
    contents: list[bytes]


class Row(NamedTuple):
    """Neighbours in a bundle that are of one kind: see `leveret.protocol.properties.survey`."""

    lo: int
    hi: int
    kind: int
    is_alike: bool  # They differ in their bodies only.


# -- Making --------------------------------------------------------------------------------------------------------


def portions(contents: list[bytes], frame_max: int) -> list[tuple[int, int]]:
    """Return which neighbours go into one bundle. A message that fits in none is alone; `fits` tells."""
    room, count = room_of(frame_max), len(contents)
    sizes = list(map(len, contents))
    if sizes.count(sizes[0]) == count:
        step = max(room // (sizes[0] + _SIZE.size), 1)
        return [(lo, min(lo + step, count)) for lo in range(0, count, step)]
    ends = list(accumulate([size + _SIZE.size for size in sizes]))
    found, lo, before = [], 0, 0
    while lo < len(ends):
        hi = max(bisect_right(ends, before + room), lo + 1)
        found.append((lo, hi))
        lo, before = hi, ends[hi - 1]
    return found


def room_of(frame_max: int) -> int:
    """Return how many bytes of contents and their sizes fit in a frame, whatever its route is."""
    return min(frame_max - OVERHEAD - _TAG.size - ROUTE_BYTES_MAX - _SIZES_AT, BYTES_MAX)


def fits(content: bytes, frame_max: int) -> bool:
    return len(content) + _SIZE.size <= room_of(frame_max)


def packed(bundle: Bundle) -> bytes:
    source, first, contents = bundle
    count = len(contents)
    sizes = pack(f">{count}I", *map(len, contents))
    return b"".join((source, _NUMBERS.pack(first, count), sizes, *contents))


def delivery_frame(channel: int, tag: int, redelivered: bool, key: bytes, bundle: bytes) -> list[bytes]:
    """Return the pieces of a frame that delivers. `key`: exchange and routing key, as short strings."""
    size = _TAG.size + len(key) + len(bundle)
    return [HEAD.pack(BUNDLE, channel, size), _TAG.pack(tag, redelivered), key, bundle, END_BYTE]


def publish_frame(channel: int, arguments: bytes, bundle: bytes) -> list[bytes]:
    """Return the pieces of a frame that publishes. `arguments`: exchange, routing key and flags."""
    return [HEAD.pack(BUNDLE, channel, len(arguments) + len(bundle)), arguments, bundle, END_BYTE]


# -- Reading -------------------------------------------------------------------------------------------------------


def cut(bundle: bytes, count: int) -> bytes:
    """Return the bundle of the first so many messages of another one. Raises BadBundle."""
    return packed(read(bundle, 0, count))


def marked(bundle: bytes) -> bytes:
    """Return the bundle with the mark that its messages may have been brought before. Raises BadBundle."""
    if len(bundle) < _SIZES_AT:
        raise BadBundle("it is cut off")
    first, count = _NUMBERS.unpack_from(bundle, SOURCE_BYTES)
    return bundle[:SOURCE_BYTES] + _NUMBERS.pack(first | MARK, count) + bundle[_SIZES_AT:]


def read_publish(payload: bytes) -> tuple[bytes, Bundle]:
    """Return the arguments of a publish (exchange, routing key and flags), and its bundle. Raises BadBundle."""
    middle = 1 + payload[0] if payload else 1
    end = middle + 1 + payload[middle] if middle < len(payload) else len(payload)
    if end >= len(payload):
        raise BadBundle("its route is cut off")
    return payload[: end + 1], read(payload, end + 1)


def read(data: bytes, at: int, most: int | None = None) -> Bundle:
    """Return the bundle at this place, up to the end, or its first `most` messages. Raises BadBundle."""
    sizes_at = at + _SIZES_AT
    if len(data) < sizes_at:
        raise BadBundle("it is cut off")
    source = data[at : at + SOURCE_BYTES]
    if not is_source(source):
        raise BadBundle("its source is malformed")
    first, count = _NUMBERS.unpack_from(data, at + SOURCE_BYTES)
    start: int = sizes_at + _SIZE.size * count
    if not count or start > len(data):
        raise BadBundle(f"it says that it has {count} messages, and has not")
    sizes = data[sizes_at:start]
    if sizes == sizes[: _SIZE.size] * count:
        size: int = _SIZE.unpack(sizes[: _SIZE.size])[0]
        if not size or start + size * count != len(data):
            raise BadBundle("its sizes are wrong")
        contents = [data[place : place + size] for place in range(start, len(data), size)]
    else:
        places = list(accumulate((one for (one,) in _SIZE.iter_unpack(sizes)), initial=start))
        if places[-1] != len(data):
            raise BadBundle("its sizes are wrong")
        contents = [data[lo:hi] for lo, hi in pairwise(places)]
    return Bundle(source, first, contents if most is None else contents[:most])


def rows_of(contents: list[bytes], shapes: HeaderShapes) -> Iterator[Row]:
    """Check contents, and yield those of one kind together, in order. Raises BadBundle."""
    first = contents[0]
    body_at, kind = _checked(first)
    if _are_alike(contents, first, body_at):
        yield Row(0, len(contents), kind, True)
        return
    lo = 0
    for at, content in enumerate(contents):
        other = _kind_of(content, shapes)
        if other != kind:
            yield Row(lo, at, kind, False)
            lo, kind = at, other
    yield Row(lo, len(contents), kind, False)


def _are_alike(contents: list[bytes], first: bytes, body_at: int) -> bool:
    """Tell whether all have the header of the first one, which was checked, and one body frame of the same size."""
    head, size = first[: body_at + HEAD.size], len(first)  # With the size of the body.
    if size > body_at and _SIZE.unpack_from(first, body_at + 3)[0] + OVERHEAD != size - body_at:
        return False
    has_head, has_end = methodcaller("startswith", head), methodcaller("endswith", END_BYTE)
    return set(map(len, contents)) == {size} and all(map(has_head, contents)) and all(map(has_end, contents))


def _kind_of(content: bytes, shapes: HeaderShapes) -> int:
    known = shapes.known.get(content[5:7])
    header = None if known is None else known[0].match(content)
    if known is None or header is None:
        body_at, kind = _checked(content)
        if body_at < len(content):
            shapes.learn(content[:body_at], kind)
        return kind
    if header.end() + int.from_bytes(header[1], "big") + 1 != len(content) or content[-1] != END:
        raise BadBundle("a body has another size than its header says")
    return known[1]


def _checked(content: bytes) -> tuple[int, int]:
    """Return where the header frame of a content ends, and its kind. All frames are checked. Raises BadBundle."""
    size = len(content)
    if size < HEADER_AT + 14 + 1 or content[0] != HEADER or content[1:3] != CHANNEL:
        raise BadBundle("a message has no header")
    second: int = OVERHEAD + _SIZE.unpack_from(content, 3)[0]
    if second > size or content[second - 1] != END or not content.startswith(_BASIC, HEADER_AT):
        raise BadBundle("a header is malformed")
    try:
        kind = survey(content, HEADER_AT, second - 1)
    except BadProperties as error:
        raise BadBundle(str(error)) from None
    left, at = int.from_bytes(content[HEADER_AT + 4 : HEADER_AT + 12], "big"), second
    while at < size:
        if at + OVERHEAD >= size or content[at] != BODY or content[at + 1 : at + 3] != CHANNEL:
            raise BadBundle("a body is malformed")
        length: int = _SIZE.unpack_from(content, at + 3)[0]
        at += length + OVERHEAD
        left -= length
        if at > size or content[at - 1] != END:
            raise BadBundle("a body is malformed")
    if left:
        raise BadBundle("a body has another size than its header says")
    return second, kind
