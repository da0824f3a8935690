"""Commands that change settings, and alarms, of nodes that run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from leveret.cli.ctl.base.command import Command, Given, Output

if TYPE_CHECKING:
    from leveret.cli.ctl.base.session import Session

OPERATIONS: Final = "Operations"
ALL_NODES: Final[dict[str, str | None]] = {"all-nodes": None}
HOLDS: Final = (
    "The change lasts until the process of the node ends; with --all-nodes it is made on each running node. For a "
    "permanent change use the configuration file. leveretctl environment shows the settings in force."
)


def set_env(session: Session, given: Given) -> Output:
    name, value = given.words
    session.banner(f'Setting "{name}" to "{value}" {_where(session, given)} ...')
    _warn(session, session.ask("set_env", {"name": name, "value": value, "everywhere": given.flag("all-nodes")}))
    return None


def clear_env(session: Session, given: Given) -> Output:
    name = given.words[0]
    session.banner(f'Setting "{name}" {_where(session, given)} back to the configured value ...')
    _warn(session, session.ask("clear_env", {"name": name, "everywhere": given.flag("all-nodes")}))
    return None


def _where(session: Session, given: Given) -> str:
    return "on all nodes" if given.flag("all-nodes") else f"on node {session.name}"


def _warn(session: Session, answer: dict[str, Any]) -> None:
    for name in answer["missing"]:
        session.warn(f"Warning: node {name} is not running, and will start with its configured value")


def set_alarm(session: Session, given: Given) -> Output:
    session.banner(f"Setting the {given.words[0]} alarm on node {session.name}. Publishers will be blocked ...")
    session.ask("set_alarm", {"resource": given.words[0]})
    return None


def clear_alarm(session: Session, given: Given) -> Output:
    resource = given.words[0]
    session.banner(f"Clearing the {resource} alarm that was set with set_alarm on node {session.name} ...")
    if session.ask("clear_alarm", {"resource": resource})["short"]:
        session.warn(f"Warning: the {resource} alarm stays set: {resource} is short on this node")
    return None


COMMANDS: Final = (
    Command(
        "set_env", OPERATIONS, "<setting> <value> [--all-nodes]", "Changes a setting of a running node",
        "leveretctl set_env channel_max 100", set_env, 2, 2, ALL_NODES,
        more="Settings: channel_max, connection_max, handshake_timeout, heartbeat and loopback_users (names separated "
        "by commas, or none), for connections that are opened afterwards; consumer_timeout, at once. Values are those "
        f"of the configuration file. {HOLDS}",
    ),
    Command(
        "clear_env", OPERATIONS, "<setting> [--all-nodes]", "Reverts what set_env changed",
        "leveretctl clear_env channel_max --all-nodes", clear_env, 1, 1, ALL_NODES,
    ),
    Command(
        "set_alarm", OPERATIONS, "<memory | disk>", "Sets a resource alarm for a drill",
        "leveretctl set_alarm memory", set_alarm, 1, 1,
        more="Publishers of the whole cluster are blocked as if this node were short of the resource, until "
        "clear_alarm is run there, or its app is stopped.",
    ),
    Command(
        "clear_alarm", OPERATIONS, "<memory | disk>", "Clears an alarm that was set with set_alarm",
        "leveretctl clear_alarm memory", clear_alarm, 1, 1,
        more="If the resource is really short, its alarm stays.",
    ),
)  # fmt: skip
