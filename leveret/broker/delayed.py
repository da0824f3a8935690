"""Delayed exchanges: which they are, and for how long a message is to be kept back.

An exchange of type `x-delayed-message` names another type in `x-delayed-type`, and routes as that does, but a message
with the header `x-delay` only after so many milliseconds. `Router` knows such exchanges (`delays`); what keeps the
messages until they are due belongs between `Channel.publish_one`, which has the message, and `Vhost.route`, to be asked
when the time has come. Until there is such a place, no exchange of this type can be declared: a delay that is taken and
ignored is worse than a refusal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from leveret.amqp.tables import Field

DELAYED: Final = "x-delayed-message"
DELAYED_TYPE: Final = "x-delayed-type"
DELAY: Final = "x-delay"
DELAY_MS_MAX: Final = (1 << 32) - 1


def check_delayed_arguments(arguments: dict[str, Field], types: Sequence[str]) -> str | None:
    """Why no delayed exchange can be declared with these, in the words of RabbitMQ's plugin."""
    field = arguments.get(DELAYED_TYPE)
    if field is None or field.kind != "S" or field.value not in types:
        return "Invalid argument, 'x-delayed-type' must be an existing exchange type"
    return None


def delay_ms(headers: dict[str, Field]) -> int:
    """How long a message waits; 0 is not at all. What is no number, negative or beyond the limit means no delay."""
    field = headers.get(DELAY)
    if field is None or not isinstance(field.value, int) or isinstance(field.value, bool):
        return 0
    return field.value if 0 < field.value <= DELAY_MS_MAX else 0
