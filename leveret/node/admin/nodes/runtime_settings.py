"""Control commands that change settings, and alarms, of a running node.

RabbitMQ's users do this with Erlang: `rabbitmqctl eval 'application:set_env(rabbit, channel_max, 100).'`. Here a
setting has the name and the values that it has in the configuration file, and is checked as there. Only settings can be
changed that the node reads again and again; others are refused. A change is not stored: it holds until the process
ends, at the node that was asked, or at all that run.

An alarm that is set by hand is for drills: publishers of the whole cluster are blocked as if memory or disk were short,
until it is cleared by hand or the node's app is stopped.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import TYPE_CHECKING, Any, Final

from leveret.base.exit_codes import DATA_ERROR, UNAVAILABLE
from leveret.node.admin.common.command import ALWAYS, FLAG, RUNNING, TEXT, TEXTS, Commands, NoAnswer, Refused
from leveret.node.config import plugins
from leveret.node.config.schema import USED, NotAllowed
from leveret.node.config.settings import Listener
from leveret.node.sockets.listeners import StartFailed
from leveret.node.system.alarms import RESOURCES

if TYPE_CHECKING:
    from leveret.node.admin.dispatch import Control

logger = logging.getLogger("leveret")

COMMANDS = Commands()

LOOPBACK_USERS: Final = "loopback_users"
# Of these the field of Settings is the one that the configuration's key has.
CHANGEABLE: Final = ("channel_max", "connection_max", "consumer_timeout", "handshake_timeout", "heartbeat")
NAMES: Final = (*CHANGEABLE, LOOPBACK_USERS)
OTHER_COMMANDS: Final = {
    "vm_memory_high_watermark": "set_vm_memory_high_watermark",
    "disk_free_limit": "set_disk_free_limit",
    "log": "set_log_level",
    "cluster_name": "set_cluster_name",
    "cluster_partition_handling": "set_cluster_partition_handling",
}
NAMES_MAX: Final = 1_000
VALUE_CHARACTERS_MAX: Final = 100_000


@COMMANDS.add(ALWAYS, name=TEXT, value=TEXT, everywhere=FLAG.or_none())
async def set_env(control: Control, name: str, value: str, everywhere: bool | None) -> Any:
    """Changes a setting. Returns which nodes have it now, and which do not run."""
    field, parsed = _parsed(name, value)
    if everywhere:
        return await _everywhere(control, "set_env", {"name": name, "value": value})
    _change(control, field, parsed)
    logger.info("%s was set to %r by leveretctl", name, value)
    return {"nodes": [control.name], "missing": []}


@COMMANDS.add(ALWAYS, name=TEXT, everywhere=FLAG.or_none())
async def clear_env(control: Control, name: str, everywhere: bool | None) -> Any:
    """Sets a setting back to what the configuration says. Returns the same."""
    field = _field(name)
    if everywhere:
        return await _everywhere(control, "clear_env", {"name": name})
    value = getattr(control.server.configured, field)
    if value != getattr(control.server.settings, field):
        _change(control, field, value)
        logger.info("%s was set back to its configured value by leveretctl", name)
    return {"nodes": [control.name], "missing": []}


def _change(control: Control, field: str, value: Any) -> None:
    control.server.change_settings(dataclasses.replace(control.server.settings, **{field: value}))


def _field(name: str) -> str:
    """Raises Refused."""
    if name in NAMES:
        return USED[name].field or name
    family = name.partition(".")[0]
    if family in OTHER_COMMANDS:
        raise Refused(DATA_ERROR, f"{family} has a command of its own; see: leveretctl help {OTHER_COMMANDS[family]}")
    known = name in USED or f"{name.rpartition('.')[0]}.$" in USED
    why = "can be changed only in the configuration file, before a start" if known else "is not a setting"
    raise Refused(DATA_ERROR, f"{name} {why}. While a node runs, these can be changed: {', '.join(NAMES)}")


def _parsed(name: str, value: str) -> tuple[str, object]:
    """Returns the field of Settings, and its value. Raises Refused."""
    field = _field(name)
    if len(value) > VALUE_CHARACTERS_MAX:
        raise Refused(DATA_ERROR, f"{name}: the value is too long")
    if name == LOOPBACK_USERS:
        users = [] if value == "none" else [one.strip() for one in value.split(",")]
        if not all(users) or len(users) > NAMES_MAX:
            text = f"{name} must be names of users with commas between them, at most {NAMES_MAX}, or none"
            raise Refused(DATA_ERROR, text)
        return field, frozenset(users)
    try:
        return field, USED[name].parse(value)
    except NotAllowed as error:
        raise Refused(DATA_ERROR, f"{name} must be {error}") from None


async def _everywhere(control: Control, command: str, arguments: dict[str, Any]) -> Any:
    """Runs a command at all running nodes. Raises Refused if one of them does not answer; the text says which have the
    setting all the same."""
    if control.server.node is None:
        raise Refused(UNAVAILABLE, "this node's app is stopped, so that it does not know which other nodes run")
    members = control.node.cluster.members()
    names = [one.name for one in members if one.running]
    asked = (control.at(name, command, arguments) for name in names)
    answers = dict(zip(names, await asyncio.gather(*asked, return_exceptions=True), strict=True))
    failed = {name: answer for name, answer in answers.items() if isinstance(answer, BaseException)}
    for answer in failed.values():
        if not isinstance(answer, NoAnswer | Refused):
            raise answer
    done = [name for name in names if name not in failed]
    if failed:
        why = "; ".join(f"{name}: {answer}" for name, answer in failed.items())
        raise Refused(UNAVAILABLE, f"done at {', '.join(done) or 'no node'}, but not everywhere: {why}")
    return {"nodes": done, "missing": [one.name for one in members if not one.running]}


# -- Plugins -------------------------------------------------------------------------------------------------------


@COMMANDS.add(ALWAYS, names=TEXTS)
async def set_plugins(control: Control, names: list[str]) -> Any:
    """Opens the ports of the plugins that are enabled now, where the configuration gives none, and closes those of the
    others. The caller has written the list to its file, from which the next start has it."""
    enabled, server = plugins.with_needed(names), control.server
    fields: dict[str, tuple[Listener, ...]] = {}
    for name, port in plugins.PORTS.items():
        configured: tuple[Listener, ...] = getattr(server.configured, port.field)
        open_now: tuple[Listener, ...] = getattr(server.settings, port.field)
        usual = Listener("", port.number)
        if name in enabled and not open_now:
            fields[port.field] = configured or (usual,)
        elif name not in enabled and open_now == (usual,):  # Else the configuration, not the list, has it opened.
            fields[port.field] = ()
    if fields:
        before = server.settings
        server.change_settings(dataclasses.replace(before, **fields))  # type: ignore[arg-type]
        try:
            await server.listeners.follow_settings()
        except StartFailed as error:
            # Else a node that is paused later would wait for this port before it opens any for clients again.
            server.change_settings(before)
            await server.listeners.follow_settings()
            raise Refused(UNAVAILABLE, str(error)) from None
        logger.info("plugins were set to %s by leveretctl", ", ".join(enabled) or "none")
    return {"enabled": list(enabled)}


# -- Alarms --------------------------------------------------------------------------------------------------------


@COMMANDS.add(RUNNING, resource=TEXT)
async def set_alarm(control: Control, resource: str) -> None:
    control.node.alarms.set_by_hand(_resource(resource))
    control.node.look()


@COMMANDS.add(RUNNING, resource=TEXT)
async def clear_alarm(control: Control, resource: str) -> Any:
    """Clears an alarm that was set by hand. Returns whether the resource is short all the same."""
    control.node.alarms.clear_by_hand(_resource(resource))
    control.node.look()
    return {"short": resource in control.node.alarms.own()}


def _resource(name: str) -> str:
    if name not in RESOURCES:
        raise Refused(DATA_ERROR, f"an alarm is one of {' or '.join(RESOURCES)}")
    return name
