"""Converts sheets, the bytes that the broker stored, into Arrow tables for Spark.

A sheet holds contents back to back, each as it was published: a header frame, then body frames.

    2 channel size | class weight body-size flags properties … 0xCE | 3 channel size | body 0xCE
    ^ start        ^ +7                         ^ +19

A million messages a second are possible only without Python code for each message. So all messages are handled
together: numpy computes positions, one number for each message, and Arrow cuts out what lies there.

- The starts are the sums of the sizes, which a sheet has. The sizes of header frames and bodies are gathered from the
  bytes behind each start; with them, the begin and end of each body are known.
- *Cutting out* is a trick: the begins and ends of the wanted pieces, in turn, are themselves the offsets of a binary
  array over the same bytes, whose every second element is a piece. Nothing is copied until `take` drops the others.
- Properties are walked for all messages at once: one step for each property, not for each message. `at` has the
  position of the next property of each message; messages that have the property (its flag is set) advance by its
  length, which is one byte of the data, or fixed. The walk ends with the last property that a wanted column needs.
- Headers are tables of any depth. Each different table is parsed once, found by Arrow's dictionary encoding; publishers
  mostly repeat the same headers. If many are different, they are parsed together (see `headers`), and only those with
  nested or rare values one by one. A body in several frames (above 128 KiB) is put together by Python, too.

A batch has at most as many rows as suit Spark, which is slower with larger batches, and its bodies fit into memory.

Values without a counterpart in a column: header values that are no strings become JSON text (`x`, bytes: base64), void
becomes null; bytes that are no UTF-8 become replacement characters; a timestamp beyond Spark's calendar becomes null.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from leveret.data.sheet import REDELIVERED, BadSheet, Sheet
from leveret.protocol import properties
from leveret.protocol.tables import BadTable, Field, decode_table
from pyspark_leveret.schema import COLUMNS, Column, arrow_schema, arrow_type
from pyspark_leveret.source.headers import as_text, maps_of

ROWS_MAX: Final = 40_000  # More take Spark longer; 22 columns of few rows take as long as those of some thousands.
BYTES_MAX: Final = 32 << 20  # Contents of a batch; a larger message is a batch of its own.
MANY_TABLES: Final = 500  # Different header tables in a batch from which they are parsed together.
TABLES_MAX: Final = 20_000  # Different header tables kept from batch to batch.

_FRAME_HEAD: Final = 7
_FRAME_OVERHEAD: Final = 8
_SECONDS_MAX: Final = 253_402_300_799  # The end of the year 9999, where Spark's calendar stops.

Ints = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]
Rows = slice | Ints  # Of a sheet: all of a range, or some by their numbers.
Octets = np.ndarray[Any, np.dtype[np.uint8]]

# Properties in their order in a header: flag, bytes (0: a short string, -1: a table).
_WALK: Final = {
    "content_type": (properties.CONTENT_TYPE, 0),
    "content_encoding": (properties.CONTENT_ENCODING, 0),
    "headers": (properties.HEADERS, -1),
    "delivery_mode": (properties.DELIVERY_MODE, 1),
    "priority": (properties.PRIORITY, 1),
    "correlation_id": (properties.CORRELATION_ID, 0),
    "reply_to": (properties.REPLY_TO, 0),
    "expiration": (properties.EXPIRATION, 0),
    "message_id": (properties.MESSAGE_ID, 0),
    "timestamp": (properties.TIMESTAMP, 8),
    "type": (properties.TYPE, 0),
    "user_id": (properties.USER_ID, 0),
    "app_id": (properties.APP_ID, 0),
    "cluster_id": (properties.CLUSTER_ID, 0),
}


class Converter:
    """Turns sheets of one queue, read from one node, into batches of the wanted columns."""

    def __init__(self, columns: Sequence[Column], queue: str, node: str | None = None) -> None:
        self.schema = arrow_schema(columns)
        self.queue = queue
        self.node = node
        wanted = {one.name for one in columns}
        walked = [index for index, name in enumerate(_WALK) if name in wanted]
        self._steps = [
            (name, flag, size, name in wanted)
            for name, (flag, size) in list(_WALK.items())[: max(walked, default=-1) + 1]
        ]
        self._tables: dict[bytes, list[tuple[str, str | None]]] = {}
        self._constants: dict[str, pa.Array] = {}  # Columns with one value, of the largest length needed so far.

    def batches(self, sheet: Sheet, keep: Bools | None = None) -> Iterator[pa.RecordBatch]:
        """Converts all messages, or those to `keep`. Raises BadSheet if the contents are not what they should be."""
        columns = _Columns(sheet)
        ends: Ints = np.cumsum(np.frombuffer(sheet.sizes, "<u4"), dtype=np.int64)
        if sheet.count and ends[-1] != len(sheet.body):
            raise BadSheet("a sheet's sizes do not fit its contents")
        begins: Ints = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
        rows = None if keep is None else np.flatnonzero(keep)
        if rows is not None:
            begins, ends = begins[rows], ends[rows]
        lo, count = 0, len(ends)
        while lo < count:
            base = int(begins[lo])
            hi = int(np.searchsorted(ends, base + BYTES_MAX, "right"))
            # The batches of a sheet are equally long: a short one at its end would cost as much as the others.
            left = count - lo
            parts = -(-left // ROWS_MAX)
            hi = max(lo + 1, min(hi, lo - (-left // parts)))
            page = _Page(sheet.body[base : int(ends[hi - 1])], begins[lo:hi] - base, ends[lo:hi] - base)
            yield self._batch(columns, page, slice(lo, hi) if rows is None else rows[lo:hi])
            lo = hi

    def _batch(self, columns: _Columns, page: _Page, at: Rows) -> pa.RecordBatch:
        found = self._walk(page)
        arrays = []
        for name in self.schema.names:
            if name in found:
                array = found[name]
            elif name == "body":
                array = page.bodies()
            elif name == "queue" or name == "node":
                array = self._constant(name, self.queue if name == "queue" else self.node, page.count)
            else:
                array = columns.column(name, at, page.count)
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _constant(self, name: str, value: str | None, count: int) -> pa.Array:
        array = self._constants.get(name)
        if array is None or len(array) < count:
            array = pa.repeat(pa.scalar(value, arrow_type(COLUMNS[name])), count)
            self._constants[name] = array
        return array[:count]

    def _walk(self, page: _Page) -> dict[str, pa.Array]:
        if not self._steps:
            return {}
        found: dict[str, pa.Array] = {}
        flags, at = page.flags(), page.begins + _FRAME_HEAD + properties.PROPERTIES_AT
        some, every = int(np.bitwise_or.reduce(flags)), int(np.bitwise_and.reduce(flags))
        for name, flag, size, is_wanted in self._steps:
            if not some & flag:
                if is_wanted:
                    found[name] = self._constant(name, None, page.count)
                continue
            has: Bools = np.ones(page.count, np.bool_) if every & flag else (flags & flag) != 0
            begins, ends = at, at + page.lengths(at, has, size)
            if is_wanted:
                found[name] = self._property(page, name, size, begins, ends, has)
            at = ends
        if bool((at > page.header_ends).any()):
            raise BadSheet("the properties of a message do not fit its header")
        return found

    def _property(self, page: _Page, name: str, size: int, begins: Ints, ends: Ints, has: Bools) -> pa.Array:
        if size < 0:
            return self._headers(page.pieces(begins, ends, has))
        if size == 0:
            return as_text(page.pieces(np.minimum(begins + 1, ends), ends, has))
        numbers = page.numbers(begins, size, has)
        if name != "timestamp":
            return pa.array(numbers.astype(np.int32), pa.int32(), mask=None if has.all() else ~has)
        has = has & (numbers >= 0) & (numbers <= _SECONDS_MAX)
        return as_timestamps(np.where(has, numbers, 0) * 1_000_000, has)

    def _headers(self, tables: pa.BinaryArray) -> pa.Array:
        encoded = tables.dictionary_encode()
        kind = arrow_type("map<string,string>")
        if len(encoded.dictionary) >= MANY_TABLES:
            return maps_of(encoded.dictionary, header_pairs, kind).take(encoded.indices)
        if len(self._tables) > TABLES_MAX:
            self._tables.clear()
        parsed, known = [], self._tables
        for raw in encoded.dictionary.to_pylist():
            pairs = known.get(raw)
            if pairs is None:
                pairs = known[raw] = header_pairs(raw)
            parsed.append(pairs)
        return pa.array(parsed, kind).take(encoded.indices)


class _Columns:
    """Spreads what a sheet has for stretches of messages over the messages."""

    def __init__(self, sheet: Sheet) -> None:
        self.sheet = sheet
        self._numbers: Ints | None = None
        self._micros: Ints | None = None
        self._keys: tuple[Ints, dict[str, pa.Array]] | None = None
        self._same: dict[str, pa.Array] = {}  # Columns with one value, of the largest length needed so far.

    def column(self, name: str, at: Rows, count: int) -> pa.Array:
        """Returns a column of `count` rows."""
        if name == "offset":
            if self._numbers is None:
                self._numbers = spread_ranges(self.sheet.ranges)
            return pa.array(self._numbers[at])
        if name == "enqueued":
            micros = self._times()[at]
            return as_timestamps(micros, micros != 0)
        if name == "redelivered":
            return pa.array((np.frombuffer(self.sheet.kinds, np.uint8)[at] & REDELIVERED) != 0)
        which, texts = self._spread_keys()
        if len(texts[name]) > 1:
            return texts[name].take(pa.array(which[at]))
        if len(self._same.get(name, ())) < count:
            self._same[name] = pa.repeat(texts[name][0], count)
        return self._same[name][:count]

    def _times(self) -> Ints:
        if self._micros is None:
            begins = np.array([at for at, _ in self.sheet.times], np.int64)
            values = np.array([ms for _, ms in self.sheet.times], np.int64) * 1000
            counts = np.diff(begins, append=self.sheet.count)
            self._micros = np.repeat(values, counts) if len(begins) else np.zeros(self.sheet.count, np.int64)
        return self._micros

    def _spread_keys(self) -> tuple[Ints, dict[str, pa.Array]]:
        if self._keys is None:
            keys = self.sheet.keys
            texts = {
                "exchange": as_text(pa.array([exchange for _, exchange, _ in keys], pa.binary())),
                "routing_key": as_text(pa.array([key for _, _, key in keys], pa.binary())),
            }
            self._keys = np.repeat(np.arange(len(keys)), [count for count, _, _ in keys]), texts
        return self._keys


class _Page:
    """The contents of the messages of one batch, and the positions of their parts."""

    def __init__(self, data: memoryview, begins: Ints, ends: Ints) -> None:
        self.data: Octets = np.frombuffer(data, np.uint8)
        self.buffer = pa.py_buffer(data)
        self.count = len(ends)
        self.ends = ends
        self.begins = begins
        if bool((ends - self.begins < _FRAME_HEAD + properties.PROPERTIES_AT + 1).any()):
            raise BadSheet("a message is shorter than its header")
        # One after the last byte of each header's payload; the end byte of its frame follows.
        self.header_ends: Ints = self.begins + _FRAME_HEAD + self._be(self.begins + 3, 4)
        if bool((self.header_ends >= ends).any()):
            raise BadSheet("the header of a message is longer than the message")

    def flags(self) -> Ints:
        return self._be(self.begins + _FRAME_HEAD + properties.FLAGS_AT, 2)

    def numbers(self, at: Ints, size: int, has: Bools) -> Ints:
        """Returns the numbers at the positions; 0 where `has` is not set. Numbers of 2**63 and above are negative."""
        if has.all():
            return self._be(at, size)
        numbers = np.zeros(self.count, np.int64)
        numbers[has] = self._be(at[has], size)
        return numbers

    def lengths(self, at: Ints, has: Bools, size: int) -> Ints:
        """Returns the bytes that a property takes in each message: 0 for messages without it."""
        if size > 0:
            return has * np.int64(size)
        if size == 0:
            return self.numbers(at, 1, has) + has
        return self.numbers(at, 4, has) + has * np.int64(4)

    def _be(self, at: Ints, size: int) -> Ints:
        if len(at) and int(at.max()) + size > len(self.data):
            raise BadSheet("the properties of a message are cut off")
        # A view with a number of this size at every byte, from which the wanted ones are picked.
        every = np.ndarray((len(self.data) - size + 1,), f">i{size}" if size > 4 else f">u{size}", self.data, 0, (1,))
        return every[at].astype(np.int64)

    def pieces(self, begins: Ints, ends: Ints, has: Bools | None = None) -> pa.BinaryArray:
        """Returns the bytes from each begin to its end, null where there are none. Pieces ascend and do not overlap."""
        offsets = np.empty(2 * self.count, np.int32)
        offsets[0::2] = begins
        offsets[1::2] = ends
        if bool((offsets[1:] < offsets[:-1]).any()) or offsets[-1] > len(self.data):
            raise BadSheet("the properties of a message are longer than the message")
        between = pa.Array.from_buffers(pa.binary(), 2 * self.count - 1, [None, pa.py_buffer(offsets), self.buffer])
        mask = None if has is None or has.all() else ~has
        return between.take(pa.array(np.arange(0, 2 * self.count, 2, dtype=np.int32), mask=mask))

    def bodies(self) -> pa.BinaryArray:
        sizes = self._be(self.begins + _FRAME_HEAD + 4, 8)
        begins = self.header_ends + 1 + np.where(sizes > 0, _FRAME_HEAD, 0)
        whole: Bools = begins + sizes + (sizes > 0) == self.ends
        if whole.all():
            return self.pieces(begins, begins + sizes)
        simple = self.pieces(begins, np.where(whole, begins + sizes, begins))
        others = np.flatnonzero(~whole)
        order = np.arange(self.count)
        order[others] = self.count + np.arange(len(others))
        joined = pa.array([self._joined(int(index)) for index in others], pa.binary())
        return pa.concat_arrays([simple, joined]).take(pa.array(order))

    def _joined(self, index: int) -> bytes:
        """Returns the body of a message that is split into several frames."""
        at, end = int(self.header_ends[index]) + 1, int(self.ends[index])
        content, pieces = memoryview(self.buffer), []
        while at + _FRAME_OVERHEAD <= end:
            size = int.from_bytes(content[at + 3 : at + _FRAME_HEAD], "big")
            pieces.append(content[at + _FRAME_HEAD : at + _FRAME_HEAD + size])
            at += _FRAME_OVERHEAD + size
        if at != end:
            raise BadSheet("the body of a message is cut off")
        return b"".join(pieces)


def spread_ranges(ranges: Sequence[tuple[int, int]]) -> Ints:
    """Returns all numbers of ranges, whose ends are included."""
    bounds = np.array(ranges, np.int64).reshape(-1, 2)
    counts = bounds[:, 1] - bounds[:, 0] + 1
    before = np.cumsum(counts) - counts
    numbers: Ints = np.repeat(bounds[:, 0] - before, counts) + np.arange(int(counts.sum()))
    return numbers


def as_timestamps(micros: Ints, has: Bools) -> pa.Array:
    return pa.array(micros, pa.int64(), mask=None if has.all() else ~has).cast(pa.timestamp("us", tz="UTC"))


# -- Headers -----------------------------------------------------------------------------------------------------------


def header_pairs(raw: bytes) -> list[tuple[str, str | None]]:
    """Returns a table as Spark's map of text to text. `decode_table` keeps the first of equal keys, as RabbitMQ
    does."""
    try:
        return [(_clean(name), header_text(field)) for name, field in decode_table(raw)[0].items()]
    except BadTable as error:
        raise BadSheet(f"the headers of a message make no sense: {error}") from None


def header_text(field: Field) -> str | None:
    """Returns a header value as text: strings as they are, void as None, all else as JSON."""
    if field.kind == "S":
        return _clean(field.value)
    value = _plain(field)
    if isinstance(value, str):
        return value
    return None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _plain(field: Field) -> Any:
    kind, value = field
    if kind == "S":
        return _clean(value)
    if kind == "x":
        return b64encode(value).decode()
    if kind == "F":
        return {_clean(name): _plain(one) for name, one in value.items()}
    if kind == "A":
        return [_plain(one) for one in value]
    if kind == "D":
        scale, number = value
        return number / 10**scale
    return value


def _clean(text: str) -> str:
    """Replaces the lone surrogates that `decode_table` makes of bytes that are no UTF-8: Arrow cannot store them."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
