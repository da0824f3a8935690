"""URIs of brokers: amqp://user:password@host:port/vhost?heartbeat=10, or amqps://, as RabbitMQ reads them.

A URI without a host stands for this cluster: no socket is opened, and the user who set the parameter is the one who
publishes and consumes. Without a path the vhost is `/`; a path of `/` alone is the vhost with the empty name.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

URI_CHARACTERS_MAX: Final = 4_096
PORTS: Final = {"amqp": 5672, "amqps": 5671}
HEARTBEAT_S: Final = 10
HEARTBEAT_S_MAX: Final = 65_535
CHANNELS_MAX: Final = 65_535
CONNECT_MS: Final = 60_000
CONNECT_MS_MAX: Final = 600_000
MECHANISMS: Final = ("plain", "amqplain", "external")

_NUMBERS: Final = ("heartbeat", "connection_timeout", "channel_max", "depth")
_CREDENTIALS: Final = re.compile(r"(?<=://)[^?]*@")
_BAD_ENTITY: Final = re.compile(r"%(?![0-9a-fA-F]{2})")
_PASSWORD: Final = re.compile(r"(?<=[?&])password=[^&]*")


class BadUri(ValueError):
    """A text is no URI of a broker. The text is the Erlang term that RabbitMQ prints."""


class AmqpUri(NamedTuple):
    """A broker to connect to. Without a host it is this cluster."""

    text: str  # Without user and password.
    tls: bool
    host: str
    port: int
    user: str | None
    password: str | None
    vhost: str
    heartbeat_s: int = HEARTBEAT_S  # 0: none.
    connect_ms: int = CONNECT_MS
    mechanisms: tuple[str, ...] = ()  # None named: EXTERNAL with a certificate, or PLAIN.
    cacertfile: str = ""
    certfile: str = ""
    keyfile: str = ""
    key_password: str = ""
    verifies: bool = True
    server_name: str | None = ""  # Empty: the host. None: the certificate may have any name, and none is sent.
    channel_max: int = 0  # What is proposed to the broker; 0: what it proposes.

    @property
    def is_direct(self) -> bool:
        return not self.host


def safe_uri(text: str) -> str:
    """Return a URI without user, password and the password of a key, also if it is malformed."""
    return _PASSWORD.sub("password=", _CREDENTIALS.sub("", text, count=1))


def parse_uri(text: str, vhost: str = "/") -> AmqpUri:
    """Parse a URI. `vhost` is meant if it has no path. Raises BadUri."""
    shown = safe_uri(text)
    if len(text) > URI_CHARACTERS_MAX:
        raise BadUri(f"{{uri_too_long,{len(text)}}}")
    if _BAD_ENTITY.search(text) is not None:
        raise BadUri(f'{{invalid_entity,"{shown}"}}')
    if "://" not in text:
        raise BadUri('{{unable_to_parse_uri,no_scheme},"' + shown + '"}')
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        found = re.search(r":(\d+)(?:[/?]|$)", text.rpartition("@")[2].partition("//")[2] or text)
        if "out of range" in str(error) and found is not None:
            raise BadUri(f'{{{{port_out_of_range,{found[1]}}},"{shown}"}}') from None
        raise BadUri(f'{{unable_to_parse_uri,"{shown}"}}') from None
    if parts.scheme not in PORTS:
        raise BadUri(f'{{{{unexpected_uri_scheme,"{parts.scheme}"}},"{shown}"}}')
    vhost = _vhost(parts.path, shown) if parts.path else vhost
    query = dict(_query(parts.query, shown))
    tls, host = parts.scheme == "amqps", unquote(parts.hostname or "")
    if any(not character.isprintable() for character in host):
        raise BadUri(f'{{invalid_host,"{shown}"}}')
    user = None if parts.username is None else unquote(parts.username)
    password = None if parts.password is None else unquote(parts.password)
    verify = query.get("verify", "verify_peer")
    if verify not in ("verify_peer", "verify_none"):
        raise BadUri(f'{{{{invalid_amqp_params_parameter,verify,"{verify}"}},"{shown}"}}')
    heartbeat_s = _number(query, "heartbeat", HEARTBEAT_S, HEARTBEAT_S_MAX, shown)
    connect_ms = _number(query, "connection_timeout", CONNECT_MS, CONNECT_MS_MAX, shown)
    server_name = query.get("server_name_indication", "")
    return AmqpUri(
        shown, tls, host, PORTS[parts.scheme] if port is None else port, user, password, vhost, heartbeat_s, connect_ms,
        _mechanisms(parts.query, shown), query.get("cacertfile", ""), query.get("certfile", ""),
        query.get("keyfile", ""), query.get("password", ""), verify == "verify_peer",
        None if server_name == "disable" else server_name,
        _number(query, "channel_max", 0, CHANNELS_MAX, shown),
    )  # fmt: skip


def _vhost(path: str, shown: str) -> str:
    name = path[1:]
    if "/" in name:
        raise BadUri(f'{{{{invalid_vhost,"{name}"}},"{shown}"}}')
    return unquote(name)


def _query(text: str, shown: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(text, keep_blank_values=True, max_num_fields=64)
    except ValueError:
        raise BadUri(f'{{unable_to_parse_uri,"{shown}"}}') from None


def _number(query: dict[str, str], name: str, default: int, most: int, shown: str) -> int:
    for one in _NUMBERS:
        value = query.get(one)
        if value is not None and not (value.isascii() and value.isdecimal() and len(value) < 10):
            fault = f'{{not_an_integer,"{value}"}}'
            raise BadUri(f'{{{{invalid_amqp_params_parameter,{one},"{value}",{fault}}},"{shown}"}}')
    return min(int(query[name]), most) if name in query else default


def _mechanisms(text: str, shown: str) -> tuple[str, ...]:
    named = [value.lower() for name, value in _query(text, shown) if name == "auth_mechanism"]
    for one in named:
        if one not in MECHANISMS:
            raise BadUri(f'{{{{invalid_auth_mechanism,"{one}"}},"{shown}"}}')
    return tuple(dict.fromkeys(named))
