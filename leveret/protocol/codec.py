"""Declaration, decoding and encoding of methods; the methods themselves are in `methods`.

A method is declared once, as a dataclass whose annotations are wire types in wire order:

    @method(50, 11, SERVER)
    class QueueDeclareOk(Method):
        queue: ShortStr
        message_count: Long
        consumer_count: Long

For the type checker the wire types are plain `str`, `int`, `bool`; for the codec their *names* determine how a field is
read and written. Neighbouring integers become one `struct`, neighbouring bits one octet whose unused bits are ignored.
The declaring module must import its annotations as strings (`from __future__ import annotations`), which is checked.

Dataclasses, not named tuples: as tuples, `BasicAck(7, False)` would equal `BasicReject(7, False)`.

Errors and their texts are those of RabbitMQ 3.10:

- Arguments that are too short, too long, or contain an invalid table: `cannot decode <<0,0,1,113>>` with the method's
  ids. (On an invalid table or an unknown method RabbitMQ drops the connection silently; here the client gets an error.)
- A short string that is not UTF-8: `Malformed UTF-8 in shortstr`, without ids. Methods that carry content are exempt,
  a routing key may be any bytes; `surrogateescape` keeps them as they came.

All of it is `BadMethod`, a reason to close the connection with FRAME_ERROR.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from itertools import groupby
from operator import attrgetter
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypeAlias, TypeVar, dataclass_transform

from leveret.protocol.tables import BadTable, decode_table, encode_table

# The wire types; `Table` is the ninth. Their names are looked up below.
Bit: TypeAlias = bool
Octet: TypeAlias = int
Short: TypeAlias = int
Long: TypeAlias = int
LongLong: TypeAlias = int
ShortStr: TypeAlias = str
LongStr: TypeAlias = bytes

Sender = Literal["client", "server", "both"]
CLIENT: Final = "client"
SERVER: Final = "server"
BOTH: Final = "both"


class BadMethod(ValueError):
    """Bytes are not a valid method, or a method cannot be written as bytes.

    `class_id` and `method_id` are for connection.close (0, 0 where RabbitMQ names none).
    """

    def __init__(self, text: str, class_id: int = 0, method_id: int = 0) -> None:
        super().__init__(text)
        self.text = text
        self.class_id = class_id
        self.method_id = method_id


class UnknownMethod(BadMethod):
    """No method has these ids."""


class Method:
    """The base class of all methods."""

    __slots__ = ()
    class_id: ClassVar[int]
    method_id: ClassVar[int]
    name: ClassVar[str]  # As RabbitMQ prints it: `queue.declare_ok`.
    has_content: ClassVar[bool]
    sender: ClassVar[Sender]


METHODS: Final[dict[tuple[int, int], type[Method]]] = {}

# A reader appends the values of one part of the arguments, and returns the offset of the next part.
_Reader: TypeAlias = Callable[[bytes, int, list[Any]], int]
_Writer: TypeAlias = Callable[[Any, list[bytes]], None]


class _Codec(NamedTuple):
    build: Callable[..., Method]
    head: bytes  # class id, method id
    readers: tuple[_Reader, ...]
    writers: tuple[_Writer, ...]


_CODECS: Final[dict[tuple[int, int], _Codec]] = {}

_M = TypeVar("_M", bound=Method)
_CLASS_NAMES: Final = {
    10: "connection",
    20: "channel",
    30: "access",
    40: "exchange",
    50: "queue",
    60: "basic",
    85: "confirm",
    90: "tx",
}


@dataclass_transform(field_specifiers=(field,))
def method(class_id: int, method_id: int, sender: Sender, *, content: bool = False) -> Callable[[type[_M]], type[_M]]:
    """Make a class a method: a slotted dataclass, registered in `METHODS` and with the codec."""

    def register(declared: type[_M]) -> type[_M]:
        made = dataclass(slots=True)(declared)
        prefix = _CLASS_NAMES[class_id]
        assert made.__name__.lower().startswith(prefix)
        words = "".join("_" + letter.lower() if letter.isupper() else letter for letter in made.__name__[len(prefix) :])
        made.class_id, made.method_id, made.sender = class_id, method_id, sender
        made.name = f"{prefix}.{words[1:]}"
        made.has_content = content
        ids = (class_id, method_id)
        assert ids not in METHODS
        METHODS[ids] = made
        _CODECS[ids] = _codec(made)
        return made

    return register


# Readers and writers of the wire types

_INTEGERS: Final = {"Octet": "B", "Short": "H", "Long": "I", "LongLong": "Q"}
_BITS: Final = tuple(tuple(bool(byte >> place & 1) for place in range(8)) for byte in range(256))
_HEAD: Final = struct.Struct(">BHI")
_IDS: Final = struct.Struct(">HH")
_SIZE: Final = struct.Struct(">I")
_FRAME_METHOD: Final = 1
_FRAME_END: Final = b"\xce"


def _codec(made: type[Method]) -> _Codec:
    readers: list[_Reader] = []
    writers: list[_Writer] = []
    declared = [(str(each.type), each.name) for each in fields(made)]  # type: ignore[arg-type]  # a dataclass by now
    for form, run in groupby(declared, key=lambda each: "Integer" if each[0] in _INTEGERS else each[0]):
        parts = list(run)
        names = [name for _, name in parts]
        if form == "Integer":
            layout = struct.Struct(">" + "".join(_INTEGERS[kind] for kind, _ in parts))
            readers.append(_integers_reader(layout))
            writers.append(_integers_writer(layout, names))
        elif form == "Bit":
            assert len(names) <= 8
            readers.append(_bits_reader(len(names)))
            writers.append(_bits_writer(names))
        else:
            assert form in _READERS, f"{made.__name__}: {form} is no wire type"
            readers += [_read_any_shortstr if made.has_content and form == "ShortStr" else _READERS[form]] * len(names)
            writers += [_string_writer(form, name) for name in names]
    head = _IDS.pack(made.class_id, made.method_id)
    return _Codec(made, head, tuple(readers), tuple(writers))


def _integers_reader(layout: struct.Struct) -> _Reader:
    size, unpack_from = layout.size, layout.unpack_from

    def read(data: bytes, at: int, values: list[Any]) -> int:
        values.extend(unpack_from(data, at))
        return at + size

    return read


def _bits_reader(count: int) -> _Reader:
    bits = tuple(row[:count] for row in _BITS)

    def read(data: bytes, at: int, values: list[Any]) -> int:
        values.extend(bits[data[at]])
        return at + 1

    return read


def _read_shortstr(data: bytes, at: int, values: list[Any]) -> int:
    end = at + 1 + data[at]
    if end > len(data):
        raise IndexError
    values.append(data[at + 1 : end].decode())
    return end


def _read_any_shortstr(data: bytes, at: int, values: list[Any]) -> int:
    end = at + 1 + data[at]
    if end > len(data):
        raise IndexError
    values.append(data[at + 1 : end].decode("utf-8", "surrogateescape"))
    return end


def _read_longstr(data: bytes, at: int, values: list[Any]) -> int:
    (size,) = _SIZE.unpack_from(data, at)
    end: int = at + 4 + size
    if end > len(data):
        raise IndexError
    values.append(data[at + 4 : end])
    return end


def _read_table(data: bytes, at: int, values: list[Any]) -> int:
    table, end = decode_table(data, at)
    values.append(table)
    return end


_READERS: Final[dict[str, _Reader]] = {"ShortStr": _read_shortstr, "LongStr": _read_longstr, "Table": _read_table}


def _integers_writer(layout: struct.Struct, names: list[str]) -> _Writer:
    pack = layout.pack

    def write(of: Any, out: list[bytes]) -> None:
        out.append(pack(*[getattr(of, name) for name in names]))

    return write


def _bits_writer(names: list[str]) -> _Writer:
    places = [(name, 1 << place) for place, name in enumerate(names)]

    def write(of: Any, out: list[bytes]) -> None:
        byte = 0
        for name, place in places:
            if getattr(of, name):
                byte |= place
        out.append(bytes((byte,)))

    return write


def _string_writer(form: str, name: str) -> _Writer:
    get = attrgetter(name)

    def write_shortstr(of: Any, out: list[bytes]) -> None:
        text = get(of).encode("utf-8", "surrogateescape")
        if len(text) > 255:
            raise BadMethod(f"{of.name}: {name} is longer than 255 bytes", of.class_id, of.method_id)
        out.append(bytes((len(text),)) + text)

    def write_longstr(of: Any, out: list[bytes]) -> None:
        text = get(of)
        out.append(_SIZE.pack(len(text)) + text)

    def write_table(of: Any, out: list[bytes]) -> None:
        out.append(encode_table(get(of)))

    return {"ShortStr": write_shortstr, "LongStr": write_longstr, "Table": write_table}[form]


def decode(class_id: int, method_id: int, arguments: bytes) -> Method:
    """Return the method with these ids; `arguments` is the frame's payload after the ids."""
    codec = _CODECS.get((class_id, method_id))
    if codec is None:
        raise UnknownMethod(f"unknown method {class_id}.{method_id}", class_id, method_id)
    values: list[Any] = []
    at = 0
    try:
        for read in codec.readers:
            at = read(arguments, at, values)
    except UnicodeDecodeError:
        raise BadMethod("Malformed UTF-8 in shortstr") from None
    except (IndexError, struct.error, BadTable):
        raise _cannot_decode(class_id, method_id, arguments) from None
    if at != len(arguments):
        raise _cannot_decode(class_id, method_id, arguments)
    return codec.build(*values)


def decode_payload(payload: bytes) -> Method:
    """Return the method in a whole method-frame payload, ids included."""
    if len(payload) < 4:
        raise BadMethod(f"type 1, all octets = {printed(payload)}: unknown_frame")
    class_id, method_id = _IDS.unpack_from(payload)
    return decode(class_id, method_id, payload[4:])


def _cannot_decode(class_id: int, method_id: int, arguments: bytes) -> BadMethod:
    return BadMethod(f"cannot decode {printed(arguments)}", class_id, method_id)


def printed(data: bytes) -> str:
    """Return bytes as Erlang prints a binary. Only the first 256 are used: no reply text has room for more."""
    return f"<<{','.join(map(str, data[:256]))}>>"


def encode(channel: int, method: Method) -> bytes:
    """Return a method as a complete frame."""
    payload = encode_payload(method)
    return _HEAD.pack(_FRAME_METHOD, channel, len(payload)) + payload + _FRAME_END


def encode_payload(method: Method) -> bytes:
    """Return a method as a method-frame payload: ids and arguments."""
    codec = _CODECS[method.class_id, method.method_id]
    out = [codec.head]
    try:
        for write in codec.writers:
            write(method, out)
    except (struct.error, BadTable, UnicodeEncodeError) as error:
        raise BadMethod(f"{method.name}: {error}", method.class_id, method.method_id) from None
    return b"".join(out)
