"""Field tables: AMQP's typed dictionaries, as RabbitMQ reads and writes them.

A table value keeps its wire type (`Field.kind`), because the type is visible to users: RabbitMQ prints it (`the value
'5' of type 'signedint'`), compares by it when a queue is declared again, and a header must be delivered with the type
with which it was published. Plain Python values would lose that.

The type letters are those of RabbitMQ, not of the AMQP 0-9-1 grammar, which no client follows:

    t bool    b byte (signed)   B unsigned byte   s short   u unsigned short   I int   i unsigned int
    l long    f float           d double          D decimal T timestamp        S string
    x bytes   F table           A array           V void    L long, read as (and never written except as) l

Where the grammar leaves a choice, it is RabbitMQ's:

- If a key occurs twice, the first counts, as in a look-up in RabbitMQ's list of pairs.
- NaN and the infinities are refused: neither Erlang nor JSON has such floats, and Erlang's parser fails on them.
- The decimal's integer is unsigned.

Strings of clients need not be UTF-8; `surrogateescape` makes a str of any bytes and returns the same bytes. A str with
other lone surrogates (only from JSON) cannot be encoded, which is a `BadTable` too.

Any error in the bytes raises `BadTable` and nothing else. Nesting is limited, so that a frame full of nested tables
raises `BadTable` and not a `RecursionError` somewhere in the caller.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

DEPTH_MAX: Final = 64  # Tables within tables; real ones (x-death, capabilities) have at most three levels.
FIELDS_MAX: Final = 4096  # Each takes about a microsecond of the event loop to read.


class BadTable(ValueError):
    """Bytes are not a table, or a table cannot be written as bytes."""


class Field(NamedTuple):
    """One typed value. S: str, x: bytes, T and integers: int, D: (scale, int), A: list[Field], F: Table, V: None."""

    kind: str
    value: Any


Table = dict[str, Field]

_SIZE: Final = struct.Struct(">I")
_DECIMAL: Final = struct.Struct(">BI")

# Kinds that are one struct: letter on the wire -> (kind, size, unpack_from). `L` is read as `l`.
_FORMATS: Final = {"b": "b", "B": "B", "s": "h", "u": "H", "I": "i", "i": "I", "l": "q", "T": "Q"}
_STRUCTS: Final = {kind: struct.Struct(">" + form) for kind, form in _FORMATS.items()}
_FLOATS: Final = {"f": struct.Struct(">f"), "d": struct.Struct(">d")}
_FIXED: Final[dict[int, tuple[str, int, Callable[[bytes, int], tuple[Any, ...]]]]] = {
    ord(letter): (kind, _STRUCTS[kind].size, _STRUCTS[kind].unpack_from)
    for letter, kind in [*((kind, kind) for kind in _STRUCTS), ("L", "l")]
}


# Reading


def decode_table(data: bytes, offset: int = 0, fields_max: int = FIELDS_MAX) -> tuple[Table, int]:
    """Return the table whose length prefix is at `offset`, and the offset after it."""
    start, end = _bounds(data, offset, len(data))
    if end - start > fields_max:
        _check_count(data, start, end, fields_max)
    return _read_table(data, start, end, 1), end


def table_end(data: bytes, offset: int, limit: int) -> int:
    """Return the offset after a table, which is checked but not decoded: this is done for every message's headers."""
    at, end = _bounds(data, offset, limit)
    if end - at > FIELDS_MAX:
        _check_count(data, at, end, FIELDS_MAX)
    while at < end:
        at += 1 + data[at]
        if at >= end:
            raise BadTable(f"field at {at} is cut off")
        letter = data[at]
        if letter == 83:  # S
            _, at = _bounds(data, at + 1, end)
        elif letter in _FIXED:
            at += 1 + _FIXED[letter][1]
        else:
            _, at = _read_field(data, at, end, 1)
    if at > end:
        raise BadTable(f"last field ends {at - end} bytes too late")
    return end


def field_values(data: bytes, at: int, end: int) -> list[tuple[int, int]]:
    """Return where the values of a checked table's strings and integers are. Other values are left out."""
    values: list[tuple[int, int]] = []
    while at < end:
        at += 1 + data[at]
        letter = data[at]
        if letter == 83:  # S
            values.append(_bounds(data, at + 1, end))
            at = values[-1][1]
        elif letter in _FIXED:
            values.append((at + 1, at + 1 + _FIXED[letter][1]))
            at = values[-1][1]
        else:
            _, at = _read_field(data, at, end, 1)
    return values


def _bounds(data: bytes, at: int, limit: int) -> tuple[int, int]:
    """Return the start and end of the bytes after the length prefix at `at`."""
    start = at + 4
    if start > limit:
        raise BadTable(f"length at {at} is cut off")
    end: int = start + _SIZE.unpack_from(data, at)[0]
    if end > limit:
        raise BadTable(f"value at {at} ends {end - limit} bytes too late")
    return start, end


def _check_count(data: bytes, at: int, end: int, fields_max: int) -> None:
    """Refuse a table with too many fields, nested ones included, before it is read. A field takes at least one byte, so
    short tables need no check."""
    left, todo = fields_max, [(at, end, True)]
    while todo:
        at, end, is_table = todo.pop()
        while at < end:
            left -= 1
            if left < 0:
                raise BadTable(f"more than {fields_max} fields")
            if is_table:
                at += 1 + data[at]
            if at >= end:
                raise BadTable(f"field at {at} is cut off")
            letter = data[at]
            at += 1
            size = _SIZES.get(letter)
            if size is not None:
                at += size
                continue
            start, at = _bounds(data, at, end)
            if letter in _NESTED:
                todo.append((start, at, letter == _NESTED[0]))


def _read_table(data: bytes, at: int, end: int, depth: int) -> Table:
    table: Table = {}
    while at < end:
        name_end = at + 1 + data[at]
        if name_end >= end:  # A type letter must follow the name.
            raise BadTable(f"field at {at} is cut off")
        name = data[at + 1 : name_end].decode("utf-8", "surrogateescape")
        value, at = _read_field(data, name_end, end, depth)
        if name not in table:
            table[name] = value
    return table


def _read_array(data: bytes, at: int, end: int, depth: int) -> list[Field]:
    array = []
    while at < end:
        value, at = _read_field(data, at, end, depth)
        array.append(value)
    return array


def _read_field(data: bytes, at: int, end: int, depth: int) -> tuple[Field, int]:
    """Return the value whose type letter is at `at`, which is below `end`, and the offset after it."""
    letter = data[at]
    at += 1
    if letter == 83:  # S
        start, stop = _bounds(data, at, end)
        return Field("S", data[start:stop].decode("utf-8", "surrogateescape")), stop
    fixed = _FIXED.get(letter)
    if fixed is not None:
        kind, size, unpack_from = fixed
        stop = at + size
        if stop > end:
            raise BadTable(f"value of type {kind} at {at} is cut off")
        return Field(kind, unpack_from(data, at)[0]), stop
    reader = _OTHERS.get(letter)
    if reader is None:
        raise BadTable(f"unknown field type {letter} at {at - 1}")
    return reader(data, at, end, depth)


def _read_bool(data: bytes, at: int, end: int, depth: int) -> tuple[Field, int]:
    if at >= end:
        raise BadTable(f"value of type t at {at} is cut off")
    return Field("t", data[at] != 0), at + 1


def _float_reader(kind: str) -> _Reader:
    layout = _FLOATS[kind]

    def read(data: bytes, at: int, end: int, depth: int) -> tuple[Field, int]:
        stop = at + layout.size
        if stop > end:
            raise BadTable(f"value of type {kind} at {at} is cut off")
        value: float = layout.unpack_from(data, at)[0]
        if not math.isfinite(value):
            raise BadTable(f"{value} at {at} is not a finite number")
        return Field(kind, value), stop

    return read


def _read_decimal(data: bytes, at: int, end: int, depth: int) -> tuple[Field, int]:
    stop = at + _DECIMAL.size
    if stop > end:
        raise BadTable(f"value of type D at {at} is cut off")
    return Field("D", _DECIMAL.unpack_from(data, at)), stop


def _read_bytes(data: bytes, at: int, end: int, depth: int) -> tuple[Field, int]:
    start, stop = _bounds(data, at, end)
    return Field("x", data[start:stop]), stop


def _read_void(data: bytes, at: int, end: int, depth: int) -> tuple[Field, int]:
    return Field("V", None), at


def _read_nested(kind: str) -> _Reader:
    inner = _read_table if kind == "F" else _read_array

    def read(data: bytes, at: int, end: int, depth: int) -> tuple[Field, int]:
        if depth >= DEPTH_MAX:
            raise BadTable(f"nested deeper than {DEPTH_MAX}")
        start, stop = _bounds(data, at, end)
        return Field(kind, inner(data, start, stop, depth + 1)), stop

    return read


_Reader: TypeAlias = Callable[[bytes, int, int, int], tuple[Field, int]]
_OTHERS: Final[dict[int, _Reader]] = {
    ord("t"): _read_bool,
    ord("f"): _float_reader("f"),
    ord("d"): _float_reader("d"),
    ord("D"): _read_decimal,
    ord("x"): _read_bytes,
    ord("V"): _read_void,
    ord("F"): _read_nested("F"),
    ord("A"): _read_nested("A"),
}


_SIZES: Final = {
    **{letter: fixed[1] for letter, fixed in _FIXED.items()},
    **{ord(letter): size for letter, size in (("t", 1), ("f", 4), ("d", 8), ("D", _DECIMAL.size), ("V", 0))},
}
_NESTED: Final = (ord("F"), ord("A"))


# Writing


def encode_table(table: Mapping[str, Field]) -> bytes:
    """Return a table's bytes with their length prefix."""
    try:
        return _table_bytes(table, 1)
    except (struct.error, OverflowError, UnicodeEncodeError) as error:
        raise BadTable(str(error)) from None


def _table_bytes(table: Mapping[str, Field], depth: int) -> bytes:
    out: list[bytes] = []
    for name, value in table.items():
        key = name.encode("utf-8", "surrogateescape")
        if len(key) > 255:
            raise BadTable(f"key of {len(key)} bytes; at most 255 can be written")
        out += (bytes((len(key),)), key, _field_bytes(value, depth))
    return _sized(b"".join(out))


def _field_bytes(field: Field, depth: int) -> bytes:
    kind, value = field
    if kind == "S":
        return b"S" + _sized(value.encode("utf-8", "surrogateescape"))
    if kind in _STRUCTS:
        return kind.encode() + _STRUCTS[kind].pack(value)
    if kind == "t":
        return b"t\x01" if value else b"t\x00"
    if kind in _FLOATS:
        if not math.isfinite(value):
            raise BadTable(f"{value} is not a finite number")
        return kind.encode() + _FLOATS[kind].pack(value)
    if kind == "D":
        return b"D" + _DECIMAL.pack(*value)
    if kind == "x":
        return b"x" + _sized(value)
    if kind == "V":
        return b"V"
    if kind not in ("F", "A"):
        raise BadTable(f"unknown field type {kind!r}")
    if depth >= DEPTH_MAX:
        raise BadTable(f"nested deeper than {DEPTH_MAX}")
    if kind == "F":
        return b"F" + _table_bytes(value, depth + 1)
    return b"A" + _sized(b"".join([_field_bytes(each, depth + 1) for each in value]))


def _sized(data: bytes) -> bytes:
    return _SIZE.pack(len(data)) + data


# Names, comparison, conversion

_TYPE_NAMES: Final = {
    "t": "bool",
    "b": "byte",
    "B": "unsignedbyte",
    "s": "short",
    "u": "unsignedshort",
    "I": "signedint",
    "i": "unsignedint",
    "l": "long",
    "f": "float",
    "d": "double",
    "D": "decimal",
    "T": "timestamp",
    "S": "longstr",
    "x": "binary",
    "F": "table",
    "A": "array",
    "V": "void",
}
_INTEGERS: Final = frozenset("bBsuIilD")  # In RabbitMQ the decimal is one of them.


def type_name(field: Field) -> str:
    """Return RabbitMQ's name of a value's type."""
    return _TYPE_NAMES[field.kind]


def equivalent(one: Field | None, other: Field | None) -> bool:
    """Return whether two arguments are the same for RabbitMQ: equal values of one class of types, 5 as byte or long."""
    if one is None or other is None:
        return one is other
    return _type_class(one.kind) == _type_class(other.kind) and canonical_field(one)[1] == canonical_field(other)[1]


def _type_class(kind: str) -> str:
    return "int" if kind in _INTEGERS else "float" if kind in _FLOATS else kind


def canonical(table: Mapping[str, Field]) -> tuple[tuple[str, str, Any], ...]:
    """Return a hashable form, the same for equal tables whatever their order of keys."""
    return tuple((name, *canonical_field(table[name])) for name in sorted(table))


def canonical_field(field: Field) -> tuple[str, Any]:
    """Return a hashable form of one value."""
    kind, value = field
    if kind == "F":
        return kind, canonical(value)
    if kind == "A":
        return kind, tuple([canonical_field(each) for each in value])
    return kind, value


def from_python(value: object) -> Field:
    """Return the field for a plain value, with RabbitMQ's types for JSON: integers are longs, floats doubles."""
    if isinstance(value, Field):
        return value
    if value is None:
        return Field("V", None)
    if isinstance(value, bool):
        return Field("t", value)
    if isinstance(value, int):
        return Field("l", value)
    if isinstance(value, float):
        return Field("d", value)
    if isinstance(value, str):
        return Field("S", value)
    if isinstance(value, bytes):
        return Field("x", value)
    if isinstance(value, Mapping):
        return Field("F", table_from_python(value))
    if isinstance(value, (list, tuple)):
        return Field("A", [from_python(each) for each in value])
    raise BadTable(f"a {type(value).__name__} has no field type")


def table_from_python(values: Mapping[str, object]) -> Table:
    """Return a table of plain values."""
    return {name: from_python(value) for name, value in values.items()}


def to_python(table: Mapping[str, Field]) -> dict[str, Any]:
    """Return plain values, for display and JSON (but `x` stays bytes); types are lost, a decimal becomes a float."""
    return {name: field_to_python(field) for name, field in table.items()}


def field_to_python(field: Field) -> Any:
    """Return the plain value of one field."""
    kind, value = field
    if kind == "F":
        return to_python(value)
    if kind == "A":
        return [field_to_python(each) for each in value]
    if kind == "D":
        scale, number = value
        return number / 10**scale
    return value
