"""Reads the settings of ports for HTTP of RabbitMQ's plugins: their TLS options, and those of MQTT and STOMP over
WebSocket.

Without a setting there is no port for WebSockets, as there is none for MQTT and STOMP. `web_mqtt.tcp.port` without an
address means every interface; `web_mqtt.tcp.listener` has both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.node.config.settings import Listener, TlsOptions

if TYPE_CHECKING:
    from leveret.node.config.load import _Reading


def read_web(reading: _Reading, plugin: str) -> dict[str, Any]:
    """Returns fields of `Settings` for `web_mqtt` or `web_stomp`."""
    tls = _listeners(reading, f"{plugin}.ssl.")
    return {
        f"{plugin}_listeners": _listeners(reading, f"{plugin}.tcp."),
        f"{plugin}_tls_listeners": tls,
        f"{plugin}_tls": read_tls(reading, f"{plugin}.ssl.", bool(tls)),
    }


def _listeners(reading: _Reading, prefix: str) -> tuple[Listener, ...]:
    whole, port = prefix + "listener", prefix + "port"
    if whole in reading.chosen and port in reading.chosen and reading.rank(whole) == reading.rank(port):
        reading.problems.append(f"give either {whole} or {port}, not both")
    if reading.rank(whole) > reading.rank(port):
        listener: Listener | None = reading.chosen[whole].value
        return () if listener is None else (listener,)
    if port not in reading.chosen:
        return ()
    return (Listener(reading.value(prefix + "ip", ""), reading.chosen[port].value),)


def read_tls(reading: _Reading, prefix: str, needed: bool) -> TlsOptions | None:
    """Returns the TLS options of a port. Those that are not set are as for AMQP with TLS."""

    def value(name: str, default: Any) -> Any:
        return reading.value(prefix + name, reading.value("ssl_options." + name, default))

    if not needed:
        for key in (f"{prefix}certfile", f"{prefix}keyfile"):
            if key in reading.chosen:
                reading.warnings.append(f"{key}: has no effect: no {prefix}port is given")
        return None
    certfile, keyfile = value("certfile", None), value("keyfile", None)
    if certfile is None or keyfile is None:
        reading.problems.append(f"{prefix}port needs {prefix}certfile and {prefix}keyfile")
        return None
    versions = reading.below(prefix + "versions") or reading.below("ssl_options.versions")
    options = TlsOptions(
        certfile=certfile,
        keyfile=keyfile,
        cacertfile=value("cacertfile", None),
        password=value("password", None),
        verify_peer=reading.value(prefix + "verify", "verify_none") == "verify_peer",
        fail_if_no_peer_cert=reading.value(prefix + "fail_if_no_peer_cert", False),
        versions=tuple(version for _, version, _ in versions) or TlsOptions.versions,
    )
    if options.verify_peer and options.cacertfile is None:
        reading.problems.append(f"{prefix}verify = verify_peer needs {prefix}cacertfile")
    if options.fail_if_no_peer_cert and not options.verify_peer:
        reading.problems.append(f"{prefix}fail_if_no_peer_cert = true needs {prefix}verify = verify_peer")
    return options
