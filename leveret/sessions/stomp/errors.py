"""What a client is told that it has done wrong: ERROR frames, in RabbitMQ's words.

With RabbitMQ a session goes on after most of them. It ends where an AMQP client would lose its channel (`told`), and
where the frame cannot be understood.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.protocol.errors import ReplyCode, reply_text
from leveret.protocol.stomp.frames import VERSIONS

if TYPE_CHECKING:
    from leveret.metadata.model.refusals import Refusal

SUPPORTED: Final = ",".join(VERSIONS)


class StompError(Exception):
    """An ERROR frame. `ends`: the connection ends with it."""

    def __init__(self, message: str, detail: str, ends: bool = False, more: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message, detail)
        self.message = message
        self.detail = detail
        self.ends = ends
        self.more = more  # Further headers.

    def headers(self) -> tuple[tuple[str, str], ...]:
        return ("message", self.message), ("content-type", "text/plain"), ("version", SUPPORTED), *self.more


def told(refusal: Refusal) -> StompError:
    """The error that a refusal of the broker is."""
    code = ReplyCode(refusal.code)
    return StompError(code.name.lower(), reply_text(code, refusal.text), ends=True)


def bad_value(header: str, value: str) -> StompError:
    """A header that has to be a number, or one of some words, is not. RabbitMQ's word for it is "Processing error"."""
    return StompError("Processing error", f"The header '{header}' cannot be '{value[:100]}'\n")


def printed(text: str) -> str:
    """A string as Erlang prints it: in quotes."""
    quoted = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{quoted}"'
