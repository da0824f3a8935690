"""The reasons for which commands are refused, in RabbitMQ's words."""

from __future__ import annotations

from typing import Final, NamedTuple


class Refusal(NamedTuple):
    """The reason for which a command was refused: AMQP's reply code and RabbitMQ's text without the code's name."""

    code: int
    text: str


def resource(kind: str, name: str, vhost: str) -> str:
    """Return the name that RabbitMQ's texts give to an object of a vhost."""
    return f"{kind} '{name}' in vhost '{vhost}'"


DEFAULT_EXCHANGE: Final = Refusal(403, "operation not permitted on the default exchange")


def not_found(kind: str, name: str, vhost: str) -> Refusal:
    return Refusal(404, f"no {resource(kind, name, vhost)}")


def fits(name: str) -> bool:
    """Return whether a name fits an AMQP short string. One from JSON may be too long, or contain half a surrogate pair.
    """
    if name.isascii():
        return len(name) <= 255
    try:
        return len(name.encode("utf-8", "surrogateescape")) <= 255
    except UnicodeEncodeError:
        return False


def unfit(what: str, name: str) -> Refusal:
    return Refusal(406, f"{what} must be UTF-8 of at most 255 bytes" if name else f"{what} must not be empty")


def no_vhost(name: str) -> Refusal:
    return Refusal(404, f"vhost {name} not found")


def no_user(name: str) -> Refusal:
    return Refusal(404, f"user {name} not found")
