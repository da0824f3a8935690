"""RabbitMQ's plugins, and its file `enabled_plugins`.

Nothing is a plugin here: what most of RabbitMQ's plugins do is always there. A list of enabled plugins therefore only
decides which ports are open: those of the plugins in the list, with RabbitMQ's port numbers. Keys of the configuration
(`mqtt.listeners.tcp.1`, `management.tcp.port`) say more than the list, and win. Without a list, the ports follow from
the configuration alone.

The file is an Erlang term: `[rabbitmq_management,rabbitmq_prometheus].`
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

FILE_BYTES_MAX: Final = 65_536
FILE_VARIABLE: Final = "RABBITMQ_ENABLED_PLUGINS_FILE"
LIST_VARIABLE: Final = "RABBITMQ_ENABLED_PLUGINS"
_TERM: Final = re.compile(r"\[\s*((?:'?[a-z][A-Za-z0-9_]*'?\s*,\s*)*'?[a-z][A-Za-z0-9_]*'?)?\s*\]\s*\.")


class Port(NamedTuple):
    """The port that a plugin opens, by the key that gives it."""

    key: str
    number: int
    field: str  # Of Settings.


# Plugins that open a port.
PORTS: Final[Mapping[str, Port]] = {
    "rabbitmq_management": Port("management.tcp.port", 15_672, "management_listeners"),
    "rabbitmq_prometheus": Port("prometheus.tcp.port", 15_692, "prometheus_listeners"),
    "rabbitmq_mqtt": Port("mqtt.listeners.tcp.default", 1_883, "mqtt_listeners"),
    "rabbitmq_web_mqtt": Port("web_mqtt.tcp.port", 15_675, "web_mqtt_listeners"),
    "rabbitmq_stomp": Port("stomp.listeners.tcp.default", 61_613, "stomp_listeners"),
    "rabbitmq_web_stomp": Port("web_stomp.tcp.port", 15_674, "web_stomp_listeners"),
}
# Ports that are open without any list, so that a list without the plugin closes them.
_OPEN_ANYWAY: Final = ("rabbitmq_management", "rabbitmq_prometheus")
# What these do is always there.
BUILT_IN: Final = (
    "rabbitmq_auth_mechanism_ssl", "rabbitmq_consistent_hash_exchange", "rabbitmq_delayed_message_exchange",
    "rabbitmq_federation", "rabbitmq_federation_management", "rabbitmq_management_agent",
    "rabbitmq_peer_discovery_common", "rabbitmq_peer_discovery_k8s", "rabbitmq_random_exchange", "rabbitmq_shovel",
    "rabbitmq_shovel_management", "rabbitmq_shovel_prometheus", "rabbitmq_tracing", "rabbitmq_web_dispatch",
)  # fmt: skip
# Plugins that others need, and that RabbitMQ enables with them.
NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "rabbitmq_management": ("rabbitmq_management_agent", "rabbitmq_web_dispatch"),
    "rabbitmq_prometheus": ("rabbitmq_management_agent", "rabbitmq_web_dispatch"),
    "rabbitmq_web_mqtt": ("rabbitmq_mqtt",),
    "rabbitmq_web_stomp": ("rabbitmq_stomp",),
    "rabbitmq_federation_management": ("rabbitmq_federation", "rabbitmq_management"),
    "rabbitmq_shovel_management": ("rabbitmq_management", "rabbitmq_shovel"),
    "rabbitmq_shovel_prometheus": ("rabbitmq_prometheus", "rabbitmq_shovel"),
    "rabbitmq_tracing": ("rabbitmq_management",),
    "rabbitmq_peer_discovery_k8s": ("rabbitmq_peer_discovery_common",),
}
KNOWN: Final = tuple(sorted((*PORTS, *BUILT_IN)))


class BadList(ValueError):
    """A file does not hold a list of plugins; the text says what it should hold."""


def parse(text: str) -> tuple[str, ...]:
    """Returns the plugins that a file lists. An empty file lists none. Raises BadList."""
    bare = re.sub(r"%[^\n]*", "", text).strip()
    if not bare:
        return ()
    found = _TERM.fullmatch(bare)
    if found is None:
        raise BadList("it should hold a list like [rabbitmq_management,rabbitmq_prometheus].")
    return tuple(dict.fromkeys(word.strip().strip("'") for word in (found[1] or "").split(",") if word.strip()))


def as_text(names: Iterable[str]) -> str:
    return f"[{','.join(sorted(names))}].\n"


def read(path: str) -> tuple[str, ...] | None:
    """Returns the plugins that a file lists; None if there is no such file. Raises BadList and OSError."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise BadList("it is not text") from None
    if len(text) > FILE_BYTES_MAX:
        raise BadList(f"it has more than {FILE_BYTES_MAX} characters")
    return parse(text)


def write(path: str, names: Iterable[str]) -> None:
    """Writes a file under another name first, so that a node that starts meanwhile finds a whole one."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    unfinished = f"{path}.new"
    try:
        with open(unfinished, "w", encoding="utf-8") as file:
            file.write(as_text(names))
        os.replace(unfinished, path)
    except OSError:
        # A file that is mounted by itself cannot be replaced, only written.
        with open(path, "w", encoding="utf-8") as file:
            file.write(as_text(names))


def with_needed(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the plugins and those that they need, in the order of their names."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += NEEDS.get(name, ())
    return tuple(sorted(found))


def ports(names: Iterable[str]) -> dict[str, str]:
    """Returns by key what a list of enabled plugins says about ports."""
    enabled = with_needed(names)
    found = {port.key: str(port.number) for name, port in PORTS.items() if name in enabled}
    return found | {PORTS[name].key: "none" for name in _OPEN_ANYWAY if name not in enabled}
