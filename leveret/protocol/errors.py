"""Reply codes, reply texts, and the errors that close a channel or a connection.

Clients display reply texts, and some parse them, so a text is the same as RabbitMQ's, byte for byte: `NAME -
explanation`, at most 255 bytes. RabbitMQ cuts a longer one to 252 bytes and `...`, even in the middle of a character;
here the cut moves back to the character's start, since clients that decode strictly fail on RabbitMQ's.

A code is *soft* (it closes the channel) or *hard* (it closes the connection). A soft error without a channel, as in a
refused login, closes the connection too; a hard code never closes only a channel. `protocol_error` chooses the class by
the code; the error has the close method to send.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from leveret.protocol.methods import ChannelClose, ConnectionClose, Method

TEXT_BYTES_MAX: Final = 255


class ReplyCode(IntEnum):
    """AMQP's reply codes; a reply text starts with the `name`."""

    REPLY_SUCCESS = 200
    CONTENT_TOO_LARGE = 311
    NO_ROUTE = 312
    NO_CONSUMERS = 313
    CONNECTION_FORCED = 320
    INVALID_PATH = 402
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541

    @property
    def is_soft(self) -> bool:
        return self in _SOFT


_SOFT: Final = frozenset(
    {
        ReplyCode.CONTENT_TOO_LARGE,
        ReplyCode.NO_ROUTE,
        ReplyCode.NO_CONSUMERS,
        ReplyCode.ACCESS_REFUSED,
        ReplyCode.NOT_FOUND,
        ReplyCode.RESOURCE_LOCKED,
        ReplyCode.PRECONDITION_FAILED,
    }
)


class ProtocolError(Exception):
    """An error that closes a channel or a connection."""

    def __init__(self, code: int, explanation: str = "", class_id: int = 0, method_id: int = 0) -> None:
        super().__init__(code, explanation, class_id, method_id)
        self.code = ReplyCode(code)
        self.explanation = explanation
        self.class_id = class_id
        self.method_id = method_id

    @property
    def reply_text(self) -> str:
        return reply_text(self.code, self.explanation)

    def __str__(self) -> str:
        return f"{self.code.value} {self.reply_text}"


class ChannelFault(ProtocolError):
    """An error with a soft code, which closes the channel."""

    def __init__(self, code: int, explanation: str = "", class_id: int = 0, method_id: int = 0) -> None:
        super().__init__(code, explanation, class_id, method_id)
        assert self.code.is_soft, self.code

    def close(self) -> ChannelClose:
        return ChannelClose(self.code, self.reply_text, self.class_id, self.method_id)


class ConnectionFault(ProtocolError):
    """An error that closes the connection."""

    def close(self) -> ConnectionClose:
        return ConnectionClose(self.code, self.reply_text, self.class_id, self.method_id)


def protocol_error(
    code: ReplyCode, explanation: str = "", method: Method | type[Method] | None = None
) -> ChannelFault | ConnectionFault:
    """Return the error that RabbitMQ's `protocol_error` raises: its class follows from the code; it names the method.
    """
    ids = (0, 0) if method is None else (method.class_id, method.method_id)
    return ChannelFault(code, explanation, *ids) if code.is_soft else ConnectionFault(code, explanation, *ids)


def reply_text(code: ReplyCode, explanation: str = "") -> str:
    """Return `NAME - explanation`, or the name alone without an explanation, in at most 255 bytes."""
    text = f"{code.name} - {explanation}" if explanation else code.name
    # `replace` also accepts lone surrogates in a name from JSON: encoding an error text must not fail.
    data = text.encode("utf-8", "surrogateescape") if _encodable(text) else text.encode("utf-8", "replace")
    if len(data) <= TEXT_BYTES_MAX:
        return data.decode("utf-8", "surrogateescape")
    end = TEXT_BYTES_MAX - 3
    # A character has at most three continuation bytes; more are no character, and are cut as by RabbitMQ.
    for start in range(end, end - 4, -1):
        if data[start] & 0xC0 != 0x80:
            end = start
            break
    return data[:end].decode("utf-8", "surrogateescape") + "..."


def _encodable(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" and not "\udc80" <= character <= "\udcff" for character in text)


# Texts that several parts of the broker share.


def resource(kind: str, name: str, vhost: str) -> str:
    """Return `queue 'q' in vhost '/'`; a topic has no kind in front, as in RabbitMQ."""
    if kind == "topic":
        return f"'{name}' in vhost '{vhost}'"
    return f"{kind} '{name}' in vhost '{vhost}'"
