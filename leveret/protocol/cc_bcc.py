"""CC and BCC: further routing keys of a message, in its headers.

Both are arrays of strings; other values in them are ignored. The message is routed by each of its keys, once to each
queue. Consumers see CC; BCC is removed from the headers before delivery, also from a message that is returned to its
publisher.
"""

from __future__ import annotations

from typing import Final

from leveret.protocol.frames import HEADER_AT, OVERHEAD, frame
from leveret.protocol.properties import decode, encode
from leveret.protocol.tables import Table, type_name

CC: Final = "CC"
BCC: Final = "BCC"
HEADER: Final = 2


class BadCopies(ValueError):
    """A CC or BCC header is invalid. The text is RabbitMQ's."""


def further_keys(headers: Table) -> list[str]:
    """Return the routing keys besides that of the publish."""
    keys: list[str] = []
    for name in (CC, BCC):
        field = headers.get(name)
        if field is None:
            continue
        if field.kind != "A":
            raise BadCopies(f'invalid message: {{unacceptable_type_in_header,"{name}",{type_name(field)}}}')
        keys += [each.value for each in field.value if each.kind == "S"]
    return keys


def without_bcc(content: bytes) -> bytes:
    """Return a content without its BCC header, as it is stored and delivered."""
    second = OVERHEAD + int.from_bytes(content[3:7], "big")
    properties = decode(content, HEADER_AT, second - 1)
    if properties.headers is None or BCC not in properties.headers:
        return content
    properties.headers = {name: field for name, field in properties.headers.items() if name != BCC}
    number = int.from_bytes(content[1:3], "big")
    payload = encode(properties, int.from_bytes(content[HEADER_AT + 4 : HEADER_AT + 12], "big"))
    return frame(HEADER, number, payload) + content[second:]
