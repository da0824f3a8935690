"""Commands as bytes: the format of the metadata log and of the messages between nodes.

A command is one line of ASCII JSON: `[1,"Bind","/","logs","queue","all","#",{}]`, the format's version, the name of the
class, and its fields in order. It is JSON because a person can read it, and because commands are rare compared with
messages. Fields at the end may be missing if they have a default, so that an old log stays readable when a command gets
another field. There is never a line break in a line, and never a byte above 127.

A table keeps its types: `{"x-max-length":["I",5]}`; bytes are base64, a decimal is `[scale, number]`.

Both directions make the same checks. A value that could be written but not read again would make a log unreadable for
ever, so `encode_command` refuses whatever `decode_command` would refuse. Each error is a `BadEncoding` that names the
field.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar, get_args, get_type_hints

from leveret.base.json_values import Json
from leveret.base.shared_values import shared
from leveret.metadata.model import commands
from leveret.metadata.model.commands import Command
from leveret.metadata.model.records import NO_ARGUMENTS, DestinationKind
from leveret.metadata.model.view import View
from leveret.metadata.mqtt import commands as mqtt
from leveret.metadata.mqtt.records import (
    NO_NUMBERS,
    NO_SUBSCRIPTIONS,
    NumberRange,
    Ranges,
    RetainedMessage,
    Subscription,
    Will,
)
from leveret.metadata.shovel import commands as shovel
from leveret.protocol.tables import DEPTH_MAX, Field, Table

VERSION: Final = 1
PACKET_ID_MAX: Final = 65_535
_VIEWS_MAX: Final = 1_024
_KINDS: Final = get_args(DestinationKind)
COMMAND_BYTES_MAX: Final = 16 * 1024 * 1024  # A larger policy or table is a mistake or an attack.

_T = TypeVar("_T")


class BadEncoding(ValueError):
    """Bytes are not a command or snapshot, or a value cannot be written as one."""


def encode_command(command: Command) -> bytes:
    """Return a command as one line, without its line end."""
    name = type(command).__name__
    if name not in _COMMANDS:
        raise BadEncoding(f"{name} is no command")
    data = dump_line([VERSION, name, *dump_record(command)])
    if len(data) > COMMAND_BYTES_MAX:
        raise BadEncoding(f"{name} takes {len(data)} bytes; at most {COMMAND_BYTES_MAX} are allowed")
    return data


def decode_command(data: bytes) -> Command:
    """Return the command in one line."""
    if len(data) > COMMAND_BYTES_MAX:
        raise BadEncoding(f"a command of {len(data)} bytes; at most {COMMAND_BYTES_MAX} are allowed")
    values = load_line(data)
    # Not by a pattern with classes, which takes as long as all of the rest. A start decodes very many commands.
    version, name = values[:2] if len(values) > 1 else (*values, None, None)[:2]
    if isinstance(version, int) and version != VERSION:
        raise BadEncoding(f"a command of version {version}; this program reads version {VERSION}")
    if not isinstance(version, int) or not isinstance(name, str):
        raise BadEncoding("not a command")
    if name not in _COMMANDS:
        raise BadEncoding(f"unknown command {name!r}")
    command: Command = load_record(_COMMANDS[name], values[2:])
    return command


# Lines


def dump_line(values: list[Json]) -> bytes:
    """Return a list as one line of ASCII JSON."""
    try:
        return _ENCODER.encode(values).encode("ascii")
    except (ValueError, TypeError, RecursionError) as error:
        raise BadEncoding(f"cannot be written as JSON: {error}") from None


def load_line(data: bytes) -> list[Json]:
    """Return the list in one line."""
    try:
        text = data.decode("ascii")
        value, end = _DECODER.raw_decode(text)
        if end != len(text):  # Space at the end, or an error.
            value = _DECODER.decode(text)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors.
        raise BadEncoding(f"not JSON: {error}") from None
    if not isinstance(value, list):
        raise BadEncoding("not a list")
    return value


def _no_constant(name: str) -> None:
    raise BadEncoding(f"{name} is not JSON")


_ENCODER: Final = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_DECODER: Final = json.JSONDecoder(parse_constant=_no_constant)


# Records: the fields of a dataclass as a list


class _Column(NamedTuple):
    name: str
    dump: Callable[[Any], Json]
    load: Callable[[Any], Any]
    optional: bool


def dump_record(record: Any) -> list[Json]:
    """Return the fields of a command or a record in order."""
    values: list[Json] = []
    columns = _layout(type(record))
    try:
        for column in columns:
            values.append(column.dump(getattr(record, column.name)))  # As in `load_record`.
    except BadEncoding as error:
        raise BadEncoding(f"{type(record).__name__}.{columns[len(values)].name}: {error}") from None
    return values


def load_record(kind: type[_T], values: Sequence[Any]) -> _T:
    """Return a command or a record made of its fields."""
    columns = _layout(kind)
    if len(values) > len(columns):
        raise BadEncoding(f"{kind.__name__} with {len(values)} fields; this program knows {len(columns)}")
    if len(values) < len(columns) and not columns[len(values)].optional:
        raise BadEncoding(f"{kind.__name__} without its {columns[len(values)].name}")
    loaded: list[Any] = []
    try:
        for column, value in zip(columns, values, strict=False):
            loaded.append(column.load(value))  # The error needs to know how far it came.
    except BadEncoding as error:
        raise BadEncoding(f"{kind.__name__}.{columns[len(loaded)].name}: {error}") from None
    return kind(*loaded)


def _layout(kind: type) -> tuple[_Column, ...]:
    layout = _LAYOUTS.get(kind)
    if layout is None:
        hints = get_type_hints(kind)
        layout = _LAYOUTS[kind] = tuple(
            _Column(field.name, *_COLUMNS[hints[field.name]], _has_default(field))
            for field in dataclasses.fields(kind)
            if field.init
        )
    return layout


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


# Values


def _expect(kind: type[_T]) -> Callable[[Any], _T]:
    def check(value: Any) -> _T:
        if type(value) is not kind:  # isinstance would accept True for an integer.
            raise BadEncoding(f"expected {kind.__name__}, found {_shown(value)}")
        return value

    return check


_text = _expect(str)
_flag = _expect(bool)
_whole = _expect(int)
_real = _expect(float)


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."


def _optional(check: Callable[[Any], _T]) -> Callable[[Any], _T | None]:
    return lambda value: None if value is None else check(value)


def _destination_kind(value: Any) -> str:
    if value not in _KINDS:
        raise BadEncoding(f"expected queue or exchange, found {_shown(value)}")
    return _text(value)


def _dump_texts(value: Any) -> list[Json]:
    if not isinstance(value, (list, tuple)):
        raise BadEncoding(f"expected texts, found {_shown(value)}")
    return [_text(each) for each in value]


def _load_texts(value: Any) -> tuple[str, ...]:
    return tuple(_text(each) for each in _expect(list)(value))


def _numbers(value: Any) -> dict[str, int]:
    return {_text(name): _whole(number) for name, number in _expect(dict)(value).items()}


def _json(value: Any, depth: int = 1) -> Any:
    """Return a checked copy of plain JSON, so that a later change of the original does not reach the store."""
    if depth > DEPTH_MAX:
        raise BadEncoding(f"nested deeper than {DEPTH_MAX}")
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return _finite(value)
    if isinstance(value, (list, tuple)):
        return [_json(each, depth + 1) for each in value]
    if isinstance(value, dict):
        return {_text(name): _json(each, depth + 1) for name, each in value.items()}
    raise BadEncoding(f"{_shown(value)} is not JSON")


def _json_object(value: Any) -> dict[str, Any]:
    copy: dict[str, Any] = _json(_expect(dict)(value))
    return copy


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise BadEncoding(f"{value} is not a finite number")
    return value


def _dump_view(view: Any) -> list[Json]:
    if not isinstance(view, View):
        raise BadEncoding(f"expected a view, found {_shown(view)}")
    in_sync: list[Json] = [[member, disk] for member, disk in view.in_sync]
    return [view.version, view.epoch, view.master, list(view.ring), in_sync, view.lossy, view.void]


def _load_view(value: Any) -> View:
    # Queues with the same members have the same view, as long as nothing happens to one of them. What is written the
    # same was checked before; values that are only equal need not be right, as `true` for 1.
    written = repr(value)
    view = _VIEWS.get(written)
    if view is None:
        view = _checked_view(value)
        if len(_VIEWS) >= _VIEWS_MAX:
            _VIEWS.clear()
        _VIEWS[written] = view
    return view


def _checked_view(value: Any) -> View:
    match _expect(list)(value):
        case [version, epoch, master, ring, in_sync, lossy, void]:
            disks = [_load_texts(each) for each in _expect(list)(in_sync)]
            if any(len(each) != 2 for each in disks):
                raise BadEncoding("an in-sync member is a name and a disk")
            pairs = tuple((each[0], each[1]) for each in disks)
            names, numbers = _load_texts(ring), (_whole(version), _whole(epoch))
            return shared(View(*numbers, _text(master), names, pairs, _whole(lossy), _whole(void)))
    raise BadEncoding(f"expected a view, found {_shown(value)}")


# MQTT clients


def _dump_bytes(value: Any) -> str:
    return base64.b64encode(_expect(bytes)(value)).decode("ascii")


def _of_record(kind: type[Any]) -> tuple[Callable[[Any], Json], Callable[[Any], Any]]:
    check = _expect(kind)
    return lambda value: dump_record(check(value)), lambda value: load_record(kind, _expect(list)(value))


def _of_rows(kind: type[Any]) -> tuple[Callable[[Any], Json], Callable[[Any], Any]]:
    check = _expect(kind)
    return (
        lambda rows: [dump_record(check(row)) for row in rows],
        lambda rows: tuple(load_record(kind, _expect(list)(row)) for row in _expect(list)(rows)),
    )


def _or_none(
    column: tuple[Callable[[Any], Json], Callable[[Any], Any]],
) -> tuple[Callable[[Any], Json], Callable[[Any], Any]]:
    return _optional(column[0]), _optional(column[1])


def _dump_subscriptions(value: Any) -> dict[str, Json]:
    return {_text(topic): list(_subscription(one)) for topic, one in value.items()}


def _load_subscriptions(value: Any) -> dict[str, Subscription]:
    found = {_text(topic): _subscription(_expect(list)(one)) for topic, one in _expect(dict)(value).items()}
    return found or NO_SUBSCRIPTIONS


def _subscription(value: Sequence[Any]) -> Subscription:
    if len(value) != 5:
        raise BadEncoding(f"{_shown(value)} is no subscription")
    qos, no_local, as_published, handling, identifier = value
    return Subscription(_whole(qos), _flag(no_local), _flag(as_published), _whole(handling), _whole(identifier))


def _ranges(width: int) -> tuple[Callable[[Any], Json], Callable[[Any], Any]]:
    def row(value: Any) -> tuple[int, ...]:
        numbers = tuple(_whole(each) for each in value)
        if len(numbers) != width or not (0 < numbers[0] <= numbers[0] + numbers[1] - 1 <= PACKET_ID_MAX):
            raise BadEncoding(f"{_shown(value)} is no range of packet ids")
        return numbers

    return lambda rows: [list(row(each)) for each in rows], lambda rows: tuple(row(each) for each in rows)


def _number_range(value: Any) -> NumberRange:
    if len(value) != 2 or not 0 < _whole(value[0]) <= _whole(value[1]):
        raise BadEncoding(f"{_shown(value)} is no range of numbers")
    return NumberRange(*value)


def _dump_numbers_by_id(value: dict[int, int]) -> list[Json]:
    return [[_whole(packet_id), _whole(number)] for packet_id, number in value.items()]


def _load_numbers_by_id(value: Any) -> dict[int, int]:
    return {_whole(packet_id): _whole(number) for packet_id, number in _expect(list)(value)} or NO_NUMBERS


def _dump_ids(value: Any) -> list[Json]:
    return [_whole(each) for each in sorted(value)]


def _load_ids(value: Any) -> frozenset[int]:
    return frozenset(_whole(each) for each in _expect(list)(value))


def _load_numbers(value: Any) -> tuple[int, ...]:
    return tuple(_whole(each) for each in _expect(list)(value))


# Tables

_INTEGERS: Final = {
    "b": (-(1 << 7), 1 << 7),
    "B": (0, 1 << 8),
    "s": (-(1 << 15), 1 << 15),
    "u": (0, 1 << 16),
    "I": (-(1 << 31), 1 << 31),
    "i": (0, 1 << 32),
    "l": (-(1 << 63), 1 << 63),
    "T": (0, 1 << 64),
}


def dump_table(table: Any, depth: int = 1) -> dict[str, Json]:
    """Return a table as JSON that keeps the types."""
    _shallow(depth)
    return {_text(name): _dump_field(field, depth) for name, field in _expect(dict)(table).items()}


def load_table(value: Any, depth: int = 1) -> Table:
    """Return the table in such JSON."""
    if not value and depth == 1 and isinstance(value, dict):
        return NO_ARGUMENTS
    _shallow(depth)
    return {_text(name): _load_field(each, depth) for name, each in _expect(dict)(value).items()}


def _shallow(depth: int) -> None:
    if depth > DEPTH_MAX:
        raise BadEncoding(f"nested deeper than {DEPTH_MAX}")


def _dump_field(field: Any, depth: int) -> Json:
    if not isinstance(field, Field):
        raise BadEncoding(f"expected a typed value, found {_shown(field)}")
    kind, value = field
    if kind == "F":
        return [kind, dump_table(value, depth + 1)]
    if kind == "A":
        _shallow(depth + 1)
        return [kind, [_dump_field(each, depth + 1) for each in _expect(list)(value)]]
    if kind == "x":
        return [kind, base64.b64encode(_expect(bytes)(value)).decode("ascii")]
    if kind == "D":
        return [kind, list(_decimal(_expect(tuple)(value)))]
    return [kind, _simple(kind, value)]


def _load_field(value: Any, depth: int) -> Field:
    match value:
        case [str(kind), inner]:
            pass
        case _:
            raise BadEncoding(f"expected a typed value, found {_shown(value)}")
    if kind == "F":
        return Field(kind, load_table(inner, depth + 1))
    if kind == "A":
        _shallow(depth + 1)
        return Field(kind, [_load_field(each, depth + 1) for each in _expect(list)(inner)])
    if kind == "x":
        return Field(kind, _load_bytes(inner))
    if kind == "D":
        return Field(kind, _decimal(_expect(list)(inner)))
    return Field(kind, _simple(kind, inner))


def _load_bytes(value: Any) -> bytes:
    try:
        return base64.b64decode(_text(value), validate=True)
    except (binascii.Error, ValueError):
        raise BadEncoding(f"expected base64, found {_shown(value)}") from None


def _simple(kind: str, value: Any) -> Json:
    """Return a value that is the same in a table and in JSON."""
    if kind == "S":
        return _text(value)
    if kind in _INTEGERS:
        low, high = _INTEGERS[kind]
        if not low <= _whole(value) < high:
            raise BadEncoding(f"{value} is out of range for type {kind}")
        return _whole(value)
    if kind == "t":
        return _flag(value)
    if kind in ("f", "d"):
        return _finite(_real(value))
    if kind == "V" and value is None:
        return None
    raise BadEncoding(f"{_shown(value)} is no value of type {kind!r}")


def _decimal(value: Sequence[Any]) -> tuple[int, int]:
    if len(value) != 2:
        raise BadEncoding(f"{_shown(value)} is no decimal")
    scale, number = _whole(value[0]), _whole(value[1])
    if not (0 <= scale < 1 << 8 and 0 <= number < 1 << 32):
        raise BadEncoding(f"{_shown(value)} is out of range for a decimal")
    return scale, number


_COLUMNS: Final[dict[Any, tuple[Callable[[Any], Json], Callable[[Any], Any]]]] = {
    str: (_text, _text),
    bool: (_flag, _flag),
    int: (_whole, _whole),
    str | None: (_optional(_text), _optional(_text)),
    int | None: (_optional(_whole), _optional(_whole)),
    View: (_dump_view, _load_view),
    View | None: (_optional(_dump_view), _optional(_load_view)),
    DestinationKind: (_destination_kind, _destination_kind),
    tuple[str, ...]: (_dump_texts, _load_texts),
    dict[str, int]: (lambda value: dict(_numbers(value)), _numbers),
    Table: (dump_table, load_table),
    bytes: (_dump_bytes, _load_bytes),
    tuple[int, ...]: (lambda value: [_whole(each) for each in value], _load_numbers),
    frozenset[int]: (_dump_ids, _load_ids),
    dict[int, int]: (_dump_numbers_by_id, _load_numbers_by_id),
    dict[str, Subscription]: (_dump_subscriptions, _load_subscriptions),
    mqtt.Ids: _ranges(2),
    Ranges: (lambda value: list(map(list, map(_number_range, value))), lambda value: tuple(map(_number_range, value))),
    mqtt.NumberedIds: _ranges(3),
    RetainedMessage | None: _or_none(_of_record(RetainedMessage)),
    Will | None: _or_none(_of_record(Will)),
    tuple[mqtt.RetainedRow, ...]: _of_rows(mqtt.RetainedRow),
    tuple[mqtt.ClaimRow, ...]: _of_rows(mqtt.ClaimRow),
    tuple[mqtt.ReleaseRow, ...]: _of_rows(mqtt.ReleaseRow),
    tuple[mqtt.SessionRow, ...]: _of_rows(mqtt.SessionRow),
    tuple[mqtt.DueRow, ...]: _of_rows(mqtt.DueRow),
    tuple[shovel.AssignRow, ...]: _of_rows(shovel.AssignRow),
    tuple[shovel.LinkRow, ...]: _of_rows(shovel.LinkRow),
    get_type_hints(commands.SetParameter)["value"]: (_json, _json),
    get_type_hints(commands.SetPolicy)["definition"]: (_json_object, _json_object),
}
_VIEWS: Final[dict[str, View]] = {}  # By their JSON as Python shows it: views that were read before.
_LAYOUTS: Final[dict[type, tuple[_Column, ...]]] = {}
_COMMANDS: Final[dict[str, type[Any]]] = {kind.__name__: kind for kind in get_args(Command)}
for _kind in _COMMANDS.values():
    _layout(_kind)
