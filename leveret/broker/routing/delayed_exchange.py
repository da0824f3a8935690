"""Delayed exchanges: which they are, for how long a message is to be kept back, and what it looks like afterwards.

An exchange of type `x-delayed-message` names another type in `x-delayed-type`, and routes as that does, but a message
with the header `x-delay` only after so many milliseconds. Until then a *hidden queue* has it, which clients do not
see: `Router` leads there, so that confirms, mirrors, other nodes and dead letters need to know nothing of delays. The
hidden queue is in `leveret.broker.kinds.delayed_queue`, where it is placed in `leveret.metadata.model.hidden_queues`.

Once released, a message has its delay negated: whoever gets it can tell, and the next delayed exchange on its way lets
it pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from leveret.protocol.cc_bcc import BCC, further_keys
from leveret.protocol.frames import HEADER_AT, with_header
from leveret.protocol.properties import DELICATE, body_size, decode_content, encode, survey
from leveret.protocol.tables import Field

DELAYED_TYPE: Final = "x-delayed-type"
DELAY: Final = "x-delay"
DELAY_MS_MAX: Final = (1 << 32) - 1
_INTEGERS: Final = frozenset("bBsuIilL")
_INT32_MAX: Final = (1 << 31) - 1


def check_delayed_arguments(arguments: dict[str, Field], types: Sequence[str]) -> str | None:
    """Why no delayed exchange can be declared with these, in the words of RabbitMQ's plugin."""
    field = arguments.get(DELAYED_TYPE)
    if field is None or field.kind != "S" or field.value not in types:
        return "Invalid argument, 'x-delayed-type' must be an existing exchange type"
    return None


def delay_ms(headers: dict[str, Field]) -> int:
    """Returns the delay of a message; 0: none. A header that is no number, negative or over the limit is no delay."""
    field = headers.get(DELAY)
    if field is None or field.kind not in _INTEGERS:
        return 0
    return field.value if 0 < field.value <= DELAY_MS_MAX else 0


class Released(NamedTuple):
    """A message whose time has come: as it goes on, by which keys, and of which kind."""

    content: bytes
    keys: tuple[str, ...]
    kind: int


def release(content: bytes, key: bytes) -> Released:
    """`key`: exchange and routing key with which it was published."""
    properties = decode_content(content, HEADER_AT)
    headers = properties.headers or {}
    further = further_keys(headers)
    delay = delay_ms(headers)
    if delay:
        headers[DELAY] = Field("I" if delay <= _INT32_MAX else "l", -delay)
    headers.pop(BCC, None)
    properties.headers = headers
    header = encode(properties, body_size(content, HEADER_AT))
    own = key[2 + key[0] :].decode("utf-8", "surrogateescape")
    return Released(with_header(content, header), (own, *further), survey(header, 0, len(header)) & ~DELICATE)
