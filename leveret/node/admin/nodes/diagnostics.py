"""Control commands that show the state of a node, and change some of its limits while it runs.

What is set here (limits of memory and disk, levels of the log, closed listeners) holds until the process ends, as in
RabbitMQ; lasting changes belong in the configuration file.

Passwords and cookies are settings too. They are never shown: not by `environment`, not by `os_env`.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import hashlib
import logging
import os
import socket
import ssl
import sys
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from leveret.base.exit_codes import DATA_ERROR, UNAVAILABLE
from leveret.metadata.model.maintenance_mark import state_of
from leveret.metadata.rules.ha_policy import is_quorum
from leveret.node.admin.common.command import ALWAYS, NUMBER, OBJECT, RUNNING, STARTED, TEXT, Commands, Refused
from leveret.node.admin.nodes.cluster import listeners, local_alarms
from leveret.node.cluster import discovery
from leveret.node.config import config_as_text
from leveret.node.config.load import load
from leveret.node.config.settings import LOG_CATEGORIES, LOG_LEVELS
from leveret.node.sockets.certificates import end_of_validity
from leveret.node.stats.memory import breakdown, named_for_tools
from leveret.node.system import logs

if TYPE_CHECKING:
    from leveret.node.admin.dispatch import Control

logger = logging.getLogger("leveret")

COMMANDS = Commands()

HIDDEN: Final = "..."
SECRETS: Final = ("cookie", "default_pass", "password")
SECRET_WORDS: Final = ("COOKIE", "PASS", "SECRET", "TOKEN", "KEY")
LINES_MAX: Final = 10_000
CERTIFICATE_BYTES_MAX: Final = 1 << 20
# RabbitMQ's flags for what this broker has always had, so that tools which look for them find them.
FEATURE_FLAGS: Final = {
    "classic_mirrored_queue_version": "Support setting version for classic mirrored queues",
    "implicit_default_bindings": "Default bindings are now implicit, instead of being stored in the database",
    "maintenance_mode_status": "Maintenance mode status",
    "quorum_queue": "Support queues of type `quorum`",
    "stream_queue": "Support queues of type `stream`",
    "user_limits": "Configure connection and channel limits for a user",
    "virtual_host_metadata": "Virtual host metadata (description, tags, etc)",
}


# -- What was set --------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Returns a setting as JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
        return {name: HIDDEN if name in SECRETS and one else plain(one) for name, one in pairs.items()}
    if hasattr(value, "_asdict"):
        return {name: plain(one) for name, one in value._asdict().items()}
    if isinstance(value, frozenset | set):
        return sorted(map(str, value))
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if hasattr(value, "items"):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, Enum):
        return value.value
    return value if isinstance(value, str | int | float | bool | None) else str(value)


@COMMANDS.add(ALWAYS)
async def environment(control: Control) -> Any:
    """Returns the present settings, with changes made since the start."""
    found = plain(control.server.settings)
    found["log_levels"] = logs.levels()
    if control.server.node is not None:
        found["memory_limit_bytes"] = control.node.alarms.memory_limit_bytes
        found["disk_limit_bytes"] = control.node.alarms.disk_limit_bytes
    holds = config_as_text.pairs(dataclasses.replace(control.server.settings, log_levels=logs.levels()))
    usual = config_as_text.pairs(
        load([], {name: os.environ[name] for name in ("HOME",) if name in os.environ}).settings
    )
    defaults = {key: usual[key] for key, text in holds.items() if usual.get(key, text) != text}
    return {"leveret": found, "config": holds, "defaults": defaults}


@COMMANDS.add(ALWAYS)
async def os_env(control: Control) -> Any:
    """Returns the environment variables that affect a node."""
    found = {name: value for name, value in os.environ.items() if name.startswith(("LEVERET_", "RABBITMQ_"))}
    return {
        name: HIDDEN if any(word in name for word in SECRET_WORDS) and not name.endswith("_FILE") else found[name]
        for name in sorted(found)
    }


@COMMANDS.add(ALWAYS)
async def command_line(control: Control) -> Any:
    return {"arguments": list(sys.argv)}


@COMMANDS.add(ALWAYS)
async def cookie_hash(control: Control) -> Any:
    """Returns a hash of the cookie, to compare those of two nodes. The caller has the cookie anyway."""
    return {"hash": base64.b64encode(hashlib.md5(control.server.cookie, usedforsecurity=False).digest()).decode()}


@COMMANDS.add(ALWAYS)
async def listening(control: Control) -> Any:
    return {"listeners": listeners(control)}


@COMMANDS.add(ALWAYS)
async def discover_peers(control: Control) -> Any:
    """Returns the nodes that a node without data would ask to join."""
    settings = control.server.settings
    if settings.discovery is not None and settings.discovery.backend == "classic_config" and not settings.join:
        return {"peers": [node.name for node in settings.discovery.nodes]}
    found = await discovery.candidates(settings, discovery.resolve_by_system)
    return {"peers": [f"{host}:{port}" for host, port in found]}


@COMMANDS.add(RUNNING)
async def feature_flags(control: Control) -> Any:
    return [
        {"name": name, "state": "enabled", "stability": "stable", "provided_by": "leveret", "desc": text, "doc_url": ""}
        for name, text in FEATURE_FLAGS.items()
    ]


# -- How it is -----------------------------------------------------------------------------------------------------


@COMMANDS.add(STARTED)
async def all_alarms(control: Control) -> Any:
    """Returns the alarms of this node, and those of the others that this one was told of."""
    others = control.node.alarms.others
    elsewhere = [
        {"type": "resource_limit", "resource": resource, "node": node}
        for node in sorted(others)
        for resource in sorted(others[node])
    ]
    return {"local": local_alarms(control), "global": elsewhere}


@COMMANDS.add(RUNNING)
async def memory_breakdown(control: Control) -> Any:
    parts, total = await breakdown(control.node)
    return {"total": total, "parts": named_for_tools(parts)}


@COMMANDS.add(RUNNING)
async def quorum_critical(control: Control) -> Any:
    """Returns what would be unavailable if this node stopped: quorum queues without another copy in sync, and the
    cluster itself."""
    node = control.node
    members = node.cluster.members()
    voters = [member for member in node.cluster.everybody() if member.voter]
    left = sum(member.running and member.name != control.name for member in voters)
    running = {member.name for member in members if member.running}
    queues = []
    for spec in node.metadata.queues.values():
        if not is_quorum(spec.arguments):
            continue
        safe = {spec.node} if spec.view is None else {name for name, _ in spec.view.in_sync}
        if control.name in safe and not safe & running - {control.name}:
            queues.append({"name": spec.name, "vhost": spec.vhost})
    majority = len(voters) // 2 + 1
    return {"single": len(members) == 1, "queues": queues, "left": left, "majority": majority, "voters": len(voters)}


@COMMANDS.add(ALWAYS, name=TEXT, family=TEXT)
async def resolve_hostname(control: Control, name: str, family: str) -> Any:
    kind = socket.AF_INET6 if family == "ipv6" else socket.AF_INET
    try:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(name, None, family=kind, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise Refused(DATA_ERROR, "Hostname does not resolve (resolution failed with an nxdomain)") from None
    return {"addresses": list(dict.fromkeys(str(address[0]) for *_, address in found))}


# -- TLS -----------------------------------------------------------------------------------------------------------


@COMMANDS.add(ALWAYS)
async def tls(control: Control) -> Any:
    """Returns the TLS versions, ciphers and certificates of this node."""
    settings = control.server.settings
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    files: dict[str, str] = {}
    for name, options in (("amqps", settings.tls), ("cluster", settings.cluster_tls)):
        if options is not None:
            files |= {f"{name} certificate": options.certfile}
            if options.cacertfile is not None:
                files |= {f"{name} authority": options.cacertfile}
    return {
        "versions": ["tlsv1.3", "tlsv1.2"],
        "ciphers": [one["name"] for one in context.get_ciphers()],
        "certificates": [_certificate(name, path) for name, path in files.items()],
    }


def _certificate(name: str, path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            end = end_of_validity(file.read(CERTIFICATE_BYTES_MAX))
    except (OSError, ValueError) as error:
        return {"name": name, "file": path, "not_after": None, "error": str(error)}
    return {"name": name, "file": path, "not_after": end.isoformat(), "error": None}


# -- Limits --------------------------------------------------------------------------------------------------------


@COMMANDS.add(RUNNING, limit=OBJECT)
async def set_memory_limit(control: Control, limit: dict[str, Any]) -> None:
    control.node.alarms.memory_limit_bytes = _limit_bytes(control, limit)
    control.node.look()


@COMMANDS.add(RUNNING, limit=OBJECT)
async def set_disk_limit(control: Control, limit: dict[str, Any]) -> None:
    control.node.alarms.disk_limit_bytes = _limit_bytes(control, limit)
    control.node.look()


def _limit_bytes(control: Control, limit: dict[str, Any]) -> int:
    """Returns a limit in bytes. `limit`: `{"bytes": N}`, or `{"times": X}`: so many times the machine's memory."""
    from leveret.node.system.alarms import total_memory_bytes

    match limit:
        case {"bytes": int(count)} if 0 <= count < 1 << 60:
            return count
        case {"times": int() | float() as times} if 0 <= times <= 1000:
            return int(times * (control.server.settings.total_memory_override or total_memory_bytes()))
    raise Refused(DATA_ERROR, "a limit is a number of bytes, or a part of the machine's memory")


# -- Listeners -----------------------------------------------------------------------------------------------------


@COMMANDS.add(RUNNING)
async def suspend_listeners(control: Control) -> None:
    count = len(control.server.listeners.servers)
    logger.info(
        "Asked to suspend %d client connection listeners. No new client connections will be accepted until these "
        "listeners are resumed!",
        count,
    )
    control.server.listeners.close()
    control.server.announce()


@COMMANDS.add(RUNNING)
async def resume_listeners(control: Control) -> None:
    from leveret.node.sockets.listeners import StartFailed

    server = control.server
    if state_of(control.node.metadata, control.name) is not None:
        raise Refused(UNAVAILABLE, f"this node is in maintenance; end that with: leveretctl -n {control.name} revive")
    if server.listeners.servers:
        return
    try:
        await server.listeners.open(server.node)
    except StartFailed as error:
        server.listeners.close()
        raise Refused(UNAVAILABLE, str(error)) from None
    logger.info("Asked to resume %d client connection listeners. New client connections from now on will be accepted!",
                len(server.listeners.servers))  # fmt: skip
    server.announce()


# -- The log -------------------------------------------------------------------------------------------------------


@COMMANDS.add(ALWAYS, level=TEXT, category=TEXT.or_none())
async def set_log_level(control: Control, level: str, category: str | None) -> Any:
    if level not in LOG_LEVELS:
        shown = ", ".join(LOG_LEVELS)
        raise Refused(UNAVAILABLE, f"level {level} is not supported. Try one of {shown}")
    if category not in (None, *LOG_CATEGORIES):
        shown = ", ".join(LOG_CATEGORIES)
        raise Refused(DATA_ERROR, f"there is no category {category} in the log. Try one of {shown}")
    for one in LOG_CATEGORIES if category is None else (category,):
        logs.set_level(one or "default", level)
    return {"levels": logs.levels(), "shown": logs.is_shown(level)}


@COMMANDS.add(ALWAYS)
async def rotate_logs(control: Control) -> None:
    try:
        logs.reopen()
    except logs.NoLogFile as error:
        raise Refused(UNAVAILABLE, str(error)) from None


def log_files(control: Control) -> list[str]:
    settings = control.server.settings
    console = [f"<{settings.log_console_stdio}>"] if settings.log_console else []
    return [*([settings.log_file] if settings.log_file else []), *console]


@COMMANDS.add(ALWAYS)
async def log_location(control: Control) -> Any:
    return {"paths": log_files(control)}


@COMMANDS.add(ALWAYS, lines=NUMBER, after=NUMBER.or_none())
async def log_tail(control: Control, lines: int, after: int | None) -> Any:
    """Returns the last lines of the log file; or what was written after a position from an earlier answer."""
    path = control.server.settings.log_file
    if path is None:
        where = " and ".join(log_files(control)) or "nowhere"
        text = f"this node writes its log to {where}. Give it a file with log.file, or see what collects its output"
        raise Refused(UNAVAILABLE, text)
    try:
        if after is not None:
            text, end = await asyncio.to_thread(logs.since, path, after)
            return {"lines": text.splitlines(), "end": end}
        found, end = await asyncio.to_thread(logs.tail, path, max(1, min(lines, LINES_MAX)))
        return {"lines": found, "end": end}
    except OSError as error:
        raise Refused(UNAVAILABLE, f"cannot read {path}: {error.strerror or error}") from None
