"""`rabbitmq-plugins`: changes the list of enabled plugins, and has a running node open and close their ports.

Which ports a plugin opens, and why there is nothing else to enable, is in `leveret.node.config.plugins`. Without a node
that runs here, or with --offline, only the file changes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from leveret import __version__
from leveret.base.control_protocol import ONE_LINE, VALIDATION
from leveret.base.exit_codes import CONFIG, DATA_ERROR, UNAVAILABLE
from leveret.cli.ctl.base.command import Command, Failed, Given, Message, Output, Report
from leveret.node.config import plugins

if TYPE_CHECKING:
    from leveret.cli.ctl.base.session import Session

PLUGINS: Final = "Plugin Management"
DEFAULT_FILE: Final = "/etc/rabbitmq/enabled_plugins"
OFFLINE: Final = "Offline change; changes will take effect at broker restart."


def _path() -> str:
    return os.environ.get(plugins.FILE_VARIABLE) or DEFAULT_FILE


def _listed() -> tuple[str, ...]:
    try:
        return plugins.read(_path()) or ()
    except (OSError, plugins.BadList) as error:
        why = getattr(error, "strerror", None) or error
        raise Failed(CONFIG, f"{_path()} cannot be read: {why}", ONE_LINE) from None


def _checked(names: Iterable[str]) -> list[str]:
    unknown = sorted(set(names) - set(plugins.KNOWN))
    if unknown:
        missing = "\n".join(f"  * {name}" for name in unknown)
        known = ", ".join(plugins.KNOWN)
        raise Failed(
            DATA_ERROR, f"the following plugins are not available here:\n{missing}\nThese are: {known}", ONE_LINE
        )
    return list(names)


def _node(given: Given) -> Session | None:
    """Returns a session with the node, if one runs here. --online insists on it."""
    from leveret.cli.ctl.base.connect import find_target
    from leveret.cli.ctl.base.session import Session

    if given.flag("offline"):
        return None
    session: Session | None = None
    try:
        session = Session(find_target(given), "plugins", given.timeout_s(30.0), print, print)
        session.learn_name()
    except Failed as failed:
        if session is not None:
            session.close()
        if given.flag("online") or failed.code != UNAVAILABLE:
            raise
        return None
    return session


def _change(given: Given, verb: str, names: list[str], after: Iterable[str]) -> Output:
    session = _node(given)
    try:
        before, wanted = set(plugins.with_needed(_listed())), tuple(sorted(after))
        now = set(plugins.with_needed(wanted))
        where = "" if session is None else f" on node {session.name}"
        lines = [f"{verb} plugins{where}:", *names, "The following plugins have been configured:"]
        lines += [f"  {name}" for name in sorted(now)]
        try:
            plugins.write(_path(), wanted)
        except OSError as error:
            raise Failed(CONFIG, f"{_path()} cannot be written: {error.strerror or error}", ONE_LINE) from None
        started, stopped = sorted(now - before), sorted(before - now)
        if session is None:
            lines.append(OFFLINE)
        else:
            lines.append(f"Applying plugin configuration to {session.name}...")
            session.ask("set_plugins", {"names": list(wanted)})
            for word, changed in (("enabled", started), ("disabled", stopped)):
                if changed:
                    lines += [f"The following plugins have been {word}:", *(f"  {name}" for name in changed), ""]
            if not started and not stopped:
                lines.append("Plugin configuration unchanged.")
            if started:
                lines.append(f"started {len(started)} plugins.")
            if stopped:
                lines.append(f"stopped {len(stopped)} plugins.")
        told = {
            "mode": "offline" if session is None else "online",
            "enabled": sorted(now),
            "started": started,
            "stopped": stopped,
            "set": sorted(now),
        }
        return Report(told, "" if given.flag("quiet") or given.flag("silent") else "\n".join(lines))
    finally:
        if session is not None:
            session.close()


def enable(given: Given) -> Output:
    names = list(plugins.KNOWN) if given.flag("all") else _checked(given.words)
    if not names:
        raise Failed(DATA_ERROR, "not enough arguments.", VALIDATION)
    return _change(given, "Enabling", names, {*_listed(), *names})


def disable(given: Given) -> Output:
    listed = _listed()
    names = list(listed) if given.flag("all") else _checked(given.words)
    if not names:
        raise Failed(DATA_ERROR, "not enough arguments.", VALIDATION)
    # What needs a plugin that is disabled is disabled with it.
    return _change(given, "Disabling", names, [one for one in listed if not {*plugins.with_needed([one])} & {*names}])


def set_(given: Given) -> Output:
    return _change(given, "Setting", _checked(given.words), given.words)


def list_(given: Given) -> Output:
    pattern = given.words[0] if given.words else ".*"
    try:
        matches = re.compile(pattern).search
    except re.error as error:
        raise Failed(DATA_ERROR, f"{pattern} is not a regular expression: {error}", ONE_LINE) from None
    listed = _listed()
    needed = plugins.with_needed(listed)
    session = _node(given)
    runs = "[failed to contact the node - status not shown]" if session is None else f"on {session.name}"
    if session is not None:
        session.close()
    rows = []
    for name in plugins.KNOWN:
        mark = "E" if name in listed else "e" if name in needed else " "
        only = "E" if given.flag("enabled") else "Ee" if given.flag("implicitly-enabled") else "Ee "
        if matches(name) and mark in only:
            rows.append((mark, "*" if mark != " " and session is not None else " ", name))
    if given.flag("minimal"):
        text = "\n".join(name for _, _, name in rows)
    else:
        head = [] if given.flag("quiet") or given.flag("silent") else [f'Listing plugins with pattern "{pattern}" ...']
        head += [" Configured: E = explicitly enabled; e = implicitly enabled", f" | Status: * = running {runs}", " |/"]
        width = max((len(name) for _, _, name in rows), default=0)
        text = "\n".join([*head, *(f"[{mark}{runs}] {name:<{width}} {__version__}" for mark, runs, name in rows)])
    words = {"E": "enabled", "e": "implicit", " ": "not_enabled"}
    value = {
        "format": "normal",
        "status": "node_down" if session is None else "running",
        "plugins": [
            {"name": name, "enabled": words[mark], "running": runs == "*", "version": __version__}
            for mark, runs, name in rows
        ],
    }
    return Report(value, text)


def is_enabled(given: Given) -> Output:
    missing = sorted(set(given.words) - set(plugins.with_needed(_listed())))
    if missing:
        raise Failed(UNAVAILABLE, f"{', '.join(missing)} is not enabled", ONE_LINE)
    return Message(f"{', '.join(given.words)} is enabled")


def directories(given: Given) -> Output:
    return Report({"enabled_plugins_file": _path()}, f"Enabled plugins file: {_path()}")


def _no_run(session: Session, given: Given) -> Output:
    raise AssertionError("this is answered without a node, or finds it itself")


_HOW: Final[dict[str, str | None]] = {"online": None, "offline": None, "all": None}

COMMANDS: Final = (
    Command(
        "list", PLUGINS, "[<pattern>] [--enabled] [--minimal]", "Lists plugins and their state",
        "rabbitmq-plugins list", _no_run, 0, 1,
        {"enabled": None, "implicitly-enabled": None, "minimal": None, "verbose": None, "offline": None},
        alone=list_,
    ),
    Command(
        "enable", PLUGINS, "[--online | --offline] (--all | <plugin> ...)", "Enables plugins: opens their ports",
        "rabbitmq-plugins enable rabbitmq_mqtt", _no_run, 0, None, _HOW, alone=enable,
    ),
    Command(
        "disable", PLUGINS, "[--online | --offline] (--all | <plugin> ...)", "Disables plugins: closes their ports",
        "rabbitmq-plugins disable rabbitmq_mqtt", _no_run, 0, None, _HOW, alone=disable,
    ),
    Command(
        "set", PLUGINS, "[--online | --offline] [<plugin> ...]", "Enables these plugins, and disables all others",
        "rabbitmq-plugins set rabbitmq_management", _no_run, 0, None, _HOW, alone=set_,
    ),
    Command(
        "is_enabled", PLUGINS, "<plugin> ...", "Exits with 69 if one of the plugins is not enabled",
        "rabbitmq-plugins is_enabled rabbitmq_mqtt", _no_run, 1, None, {"offline": None}, alone=is_enabled,
    ),
    Command(
        "directories", PLUGINS, "", "Shows where the list of enabled plugins is", "rabbitmq-plugins directories",
        _no_run, 0, 0, {"offline": None}, alone=directories,
    ),
)  # fmt: skip
