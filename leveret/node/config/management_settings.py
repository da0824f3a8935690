"""Reads the settings of the management port.

As for AMQP, RabbitMQ's name for it (`management.tcp.port`) without an address means every interface, and ours
(`--management-port`) means the host of the AMQP listener. Without a setting it is the port for AMQP plus 10000,
RabbitMQ's 15672; unless there is one with TLS, which then is the only one. `none` switches it off, and 0 lets the
system choose, as with every port.

Metrics for Prometheus have a port of their own besides, without credentials as in RabbitMQ: `prometheus.tcp.port`.
Without a setting it is the port for AMQP plus 10020, RabbitMQ's 15692, if there is a management port and the one for
AMQP was configured; if another process has that port, the node does without.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from leveret.node.config.settings import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    MANAGEMENT_PORT_OFFSET,
    PROMETHEUS_PORT_OFFSET,
    Listener,
)
from leveret.node.config.web_settings import read_tls

if TYPE_CHECKING:
    from leveret.node.config.load import _Reading

OURS: Final = "management_port"
TCP: Final = "management.tcp."
SSL: Final = "management.ssl."
METRICS: Final = "prometheus.tcp."


def read_management(reading: _Reading, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns fields of `Settings`."""
    clients: tuple[Listener, ...] = (*fields["tcp_listeners"], *fields["ssl_listeners"])
    tls_port: int | None = reading.value(SSL + "port", None)
    tls = () if tls_port is None else (Listener(reading.value(SSL + "ip", ""), tls_port),)
    management = _tcp(reading, clients, bool(tls))
    return {
        "prometheus_listeners": _prometheus(reading, clients, bool(management or tls)),
        "prometheus_is_wanted": METRICS + "port" in reading.chosen,
        "management_origins": tuple(origin for _, origin, _ in reading.below("management.cors.allow_origins")),
        "management_listeners": management,
        "management_tls_listeners": tls,
        "management_tls": read_tls(reading, "management.ssl.", bool(tls)),
    }


def _tcp(reading: _Reading, clients: tuple[Listener, ...], has_tls: bool) -> tuple[Listener, ...]:
    host, amqp = clients[0] if clients else (DEFAULT_HOST, DEFAULT_PORT)
    ip: str | None = reading.value(TCP + "ip", None)
    ours, theirs = OURS in reading.chosen, TCP + "port" in reading.chosen
    if ours and theirs and reading.rank(OURS) == reading.rank(TCP + "port"):
        reading.problems.append("give either management_port or management.tcp.port, not both")
    if ours and (not theirs or reading.rank(OURS) > reading.rank(TCP + "port")):
        port, place = reading.chosen[OURS].value, ip or host
    elif theirs:
        port, place = reading.chosen[TCP + "port"].value, ip or ""
    elif has_tls:
        return ()
    else:
        port, place = amqp and amqp + MANAGEMENT_PORT_OFFSET, ip or host
        if port > 65_535:
            reading.warnings.append(
                f"the management port would be {amqp} + {MANAGEMENT_PORT_OFFSET}, which is none; any free one is taken,"
                " another at each start; choose one with --management-port"
            )
            port = 0
    return () if port is None else (Listener(place, port),)


def _prometheus(reading: _Reading, clients: tuple[Listener, ...], has_management: bool) -> tuple[Listener, ...]:
    host, amqp = clients[0] if clients else (DEFAULT_HOST, DEFAULT_PORT)
    ip: str | None = reading.value(METRICS + "ip", None)
    if METRICS + "port" in reading.chosen:
        port = reading.chosen[METRICS + "port"].value
        return () if port is None else (Listener(ip or "", port),)
    port = amqp + PROMETHEUS_PORT_OFFSET
    return (Listener(ip or host, port),) if has_management and amqp and port <= 65_535 else ()
