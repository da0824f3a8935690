"""Addresses of AMQP brokers: amqp://user:password@host:port/vhost."""

from __future__ import annotations

import os
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

URI_CHARACTERS_MAX: Final = 4096
DEFAULT_PORTS: Final = {"amqp": 5672, "amqps": 5671}


class BadUri(ValueError):
    """The text is not the address of an AMQP broker."""


class Address(NamedTuple):
    host: str
    port: int
    user: str
    password: str
    vhost: str
    tls: bool = False

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_uri(text: str) -> Address:
    """Parses amqp://user:password@host:port/vhost, or amqps://. Missing parts default to guest, 5672 or 5671, and the
    vhost "/". Raises BadUri."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise BadUri(f"{text}: {error}") from None
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
        raise BadUri(f"{text}: use amqp://user:password@host:port/vhost, or amqps:// for TLS")
    if parts.query:
        raise BadUri(f"{text}: parameters in the address ({parts.query}) are not supported")
    vhost = unquote(parts.path[1:]) if len(parts.path) > 1 else "/"
    return Address(
        parts.hostname,
        port or DEFAULT_PORTS[parts.scheme],
        unquote(parts.username or "guest"),
        unquote(parts.password or "guest"),
        vhost,
        parts.scheme == "amqps",
    )


def read_uri(text: str) -> Address:
    """Parses an address, or the one kept in a file (`@FILE`) or an environment variable (`env:NAME`): everybody on the
    machine can read a command line. Raises BadUri, whose text never has the contents of the file or variable."""
    if text.startswith("@"):
        where = f"the address in {text[1:]}"
        try:
            with open(text[1:], encoding="utf-8") as file:
                found = file.read(URI_CHARACTERS_MAX).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadUri(f"{where} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    elif text.startswith("env:"):
        where = f"the address in the variable {text[4:]}"
        found = os.environ.get(text[4:], "").strip()
    else:
        return parse_uri(text)
    try:
        return parse_uri(found)
    except BadUri:
        raise BadUri(f"{where} is not valid: use amqp://user:password@host:port/vhost, or amqps:// for TLS") from None
