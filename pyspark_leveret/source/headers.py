"""Parses many header tables at once, for messages whose headers all differ.

A table is a row of fields, each a name, a letter for its type, and a value:

    4 bytes length | 1 byte length, name | letter | value | name | letter | value …

All tables are walked together: the first field of each, then the second of those that have one, and so on. The
positions of names and values are numbers in arrays, and Arrow cuts them out of the bytes, as in `arrow`. Most headers
are texts, integers and truth values; tables with anything else in them (tables, lists, floats, times), with a name
twice, with too many fields, or with bytes that make no sense are left to a function that parses one by one and knows
every case.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

FIELDS_MAX: Final = 32

Ints = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]
Octets = np.ndarray[Any, np.dtype[np.uint8]]
Pairs = list[tuple[str, str | None]]

_TEXT, _TRUTH, _VOID = ord("S"), ord("t"), ord("V")
# Letters of integers, and how they are stored.
_INTEGERS: Final = {
    ord("b"): ">i1", ord("B"): ">u1", ord("s"): ">i2", ord("u"): ">u2", ord("I"): ">i4", ord("i"): ">u4",
    ord("l"): ">i8",
}  # fmt: skip
_UNKNOWN: Final = -1
_LENGTHS: Final[Ints] = np.full(256, _UNKNOWN, np.int64)  # Bytes of a value by its letter; 0 for a text.
for _letter, _kind in _INTEGERS.items():
    _LENGTHS[_letter] = np.dtype(_kind).itemsize
_LENGTHS[_TRUTH], _LENGTHS[_VOID], _LENGTHS[_TEXT] = 1, 0, 0


class Fields(NamedTuple):
    """Fields of many tables, with the table that each belongs to and the positions of its parts."""

    table: Ints
    name: Ints
    name_end: Ints
    letter: Ints
    value: Ints
    value_end: Ints


def maps_of(tables: pa.BinaryArray, one_by_one: Callable[[bytes], Pairs], kind: pa.DataType) -> pa.Array:
    """Returns tables, none of which is null, as maps of text to text."""
    count = len(tables)
    _, starts, contents = tables.buffers()
    offsets: Ints = np.frombuffer(starts, np.int32)[tables.offset : tables.offset + count + 1].astype(np.int64)
    buffer = contents or pa.py_buffer(b"")
    data: Octets = np.frombuffer(buffer, np.uint8)
    fields, is_simple = _walk(data, offsets)
    is_simple &= ~_repeating(fields, data, buffer, count)
    chosen = is_simple[fields.table]
    fields = Fields(*(column[chosen] for column in fields))
    sizes = np.bincount(fields.table, minlength=count)
    ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes))).astype(np.int32)
    names = as_text(_cut(buffer, fields.name, fields.name_end))
    found = pa.MapArray.from_arrays(pa.array(ends, pa.int32()), names, _texts(fields, data, buffer)).cast(kind)
    if is_simple.all():
        return found
    others = np.flatnonzero(~is_simple)
    parsed = pa.array([one_by_one(tables[int(index)].as_py()) for index in others], kind)
    order = np.arange(count)
    order[others] = count + np.arange(len(others))
    return pa.concat_arrays([found, parsed]).take(pa.array(order))


def _walk(data: Octets, offsets: Ints) -> tuple[Fields, Bools]:
    """Returns all fields in the order of their tables, and which tables are simple."""
    begins, ends = offsets[:-1], offsets[1:]
    is_simple: Bools = ends - begins >= 4
    rows: Ints = np.flatnonzero(is_simple)
    is_simple[rows] = begins[rows] + 4 + _numbers(data, begins[rows], ">u4") == ends[rows]
    rows = rows[is_simple[rows]]
    at: Ints = begins[rows] + 4
    steps: list[Fields] = []
    for _ in range(FIELDS_MAX):
        going = at < ends[rows]
        rows, at = rows[going], at[going]
        if not len(rows):
            break
        name_end = at + 1 + data[at]
        fits = name_end < ends[rows]
        is_simple[rows[~fits]] = False
        rows, at, name_end = rows[fits], at[fits], name_end[fits]
        letter: Ints = data[name_end].astype(np.int64)
        value, length = name_end + 1, _LENGTHS[letter]
        is_text: Bools = letter == _TEXT
        fits = (length != _UNKNOWN) & (value + np.where(is_text, 4, length) <= ends[rows])
        sized = np.flatnonzero(is_text & fits)
        length[sized] = _numbers(data, value[sized], ">u4")
        value = value + np.where(is_text, 4, 0)
        value_end = value + length
        fits &= value_end <= ends[rows]
        is_simple[rows[~fits]] = False
        step = Fields(rows, at + 1, name_end, letter, value, value_end)
        steps.append(Fields(*(column[fits] for column in step)))
        rows, at = rows[fits], value_end[fits]
    is_simple[rows[at < ends[rows]]] = False  # More fields than are walked.
    if not steps:
        nothing: Ints = np.zeros(0, np.int64)
        return Fields(*(nothing for _ in Fields._fields)), is_simple
    together = Fields(*(np.concatenate(columns) for columns in zip(*steps, strict=True)))
    order = np.argsort(together.table, kind="stable")
    return Fields(*(column[order] for column in together)), is_simple


def _repeating(fields: Fields, data: Octets, buffer: pa.Buffer, count: int) -> Bools:
    """Returns the tables that have a name twice, of which only the first counts."""
    found: Bools = np.zeros(count, np.bool_)
    if len(fields.table):
        names = _cut(buffer, fields.name, fields.name_end).dictionary_encode()
        pairs = fields.table * len(names.dictionary) + np.asarray(names.indices)
        pairs.sort()
        found[pairs[1:][pairs[1:] == pairs[:-1]] // len(names.dictionary)] = True
    return found


def _texts(fields: Fields, data: Octets, buffer: pa.Buffer) -> pa.StringArray:
    """Returns the values as texts: integers and truth values as JSON has them, void as null."""
    is_text: Bools = fields.letter == _TEXT
    if is_text.all():
        return as_text(_cut(buffer, fields.value, fields.value_end))
    parts: list[pa.Array] = []
    wheres: list[Ints] = []
    for letter in np.unique(fields.letter).tolist():
        where = np.flatnonzero(fields.letter == letter)
        if letter == _TEXT:
            part = as_text(_cut(buffer, fields.value[where], fields.value_end[where]))
        elif letter == _TRUTH:
            part = pc.if_else(pa.array(data[fields.value[where]] != 0), "true", "false")
        elif letter == _VOID:
            part = pa.nulls(len(where), pa.string())
        else:
            part = pa.array(_numbers(data, fields.value[where], _INTEGERS[letter])).cast(pa.string())
        parts.append(part)
        wheres.append(where)
    order = np.empty(len(fields.letter), np.int64)
    order[np.concatenate(wheres)] = np.arange(len(order))
    return pa.concat_arrays(parts).take(pa.array(order))


def _numbers(data: Octets, at: Ints, kind: str) -> Ints:
    size = np.dtype(kind).itemsize
    if not len(at):
        return np.zeros(0, np.int64)
    every = np.ndarray((len(data) - size + 1,), kind, data, 0, (1,))
    return every[at].astype(np.int64)


def _cut(buffer: pa.Buffer, begins: Ints, ends: Ints) -> pa.BinaryArray:
    """Returns the bytes from each begin to its end. Pieces ascend and do not overlap."""
    offsets = np.empty(2 * len(begins), np.int32)
    offsets[0::2] = begins
    offsets[1::2] = ends
    if not len(begins):
        return pa.array([], pa.binary())
    between = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), buffer])
    return between.take(pa.array(np.arange(0, len(offsets), 2, dtype=np.int32)))


def as_text(raw: pa.BinaryArray) -> pa.StringArray:
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if one is None else one.decode("utf-8", "replace") for one in raw.to_pylist()]
        return pa.array(texts, pa.string())
