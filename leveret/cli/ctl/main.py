"""`leveretctl`: sends one command to one node, with rabbitmqctl's names, output and exit codes.

`base.parse` reads the command line, `base.connect` finds the node, the command's function (in `nodes`, `queues` and
`metadata`) asks it through a `Session`, and `base.formatters` prints the answer. `leveret.node.admin.dispatch` is the
other end, in the node.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from leveret import __version__
from leveret.base.control_protocol import HEADED, ONE_LINE, PLAIN, TOLD, VALIDATION, WITH_USAGE
from leveret.base.exit_codes import DATA_ERROR, OK, UNAVAILABLE, USAGE
from leveret.cli.ctl.base import help
from leveret.cli.ctl.base.command import VHOST, Command, Failed, Given, Message, Output, Report
from leveret.cli.ctl.base.parse import parse
from leveret.cli.ctl.metadata import definitions, policies_and_limits, users
from leveret.cli.ctl.nodes import (
    checks,
    cluster,
    maintenance,
    partitions,
    plugins,
    report,
    runtime,
    runtime_settings,
)
from leveret.cli.ctl.queues import federation, leases, listings, mirrors, mqtt_state, rebalance, shovels, spools
from leveret.cli.ctl.unsupported import REFUSED
from leveret.cli.guard import guarded

if TYPE_CHECKING:
    from leveret.cli.ctl.base.session import Session


def version(given: Given) -> Output:
    return Report({"version": __version__}, __version__)


def completion_script(given: Given) -> Output:
    from leveret.cli.completion import PROGRAMS, SHELLS, script

    program, shell = given.text("program", "leveretctl"), given.words[0]
    if shell not in SHELLS or program not in PROGRAMS:
        known = f"{', '.join(SHELLS)}; with --program {', '.join(PROGRAMS)}"
        raise Failed(DATA_ERROR, f"Bad argument: completion exists for {known}", VALIDATION)
    return Message(script(program, shell))


NAMES_MAX: Final = 1000
NAMES_S: Final = 2.0  # A key was pressed, and somebody waits.
PLAIN_NAME: Final = re.compile(r"[\w.@:+-]+", re.ASCII)  # Which no shell reads as something else.


def autocomplete(given: Given) -> Output:
    kind = given.switches.get("names")
    if kind is not None:
        found = [name for name in _names(str(kind), given) if PLAIN_NAME.fullmatch(name)]
        return Report(found, "\n".join(found)) if found else None
    names = sorted(name for name in COMMANDS if name.startswith(given.words[0] if given.words else ""))
    return Report(names, "\n".join(names)) if names else None


def _names(kind: str, given: Given) -> list[str]:
    """For shells. Of nodes, those on this machine; of queues, the first that the node has. Nobody answers: none."""
    from leveret.node.system import local_registry

    if kind == "nodes":
        return [entry.name for entry in local_registry.entries()]
    if kind != "queues":
        raise Failed(DATA_ERROR, "Bad argument: --names must be nodes or queues", VALIDATION)
    given.switches.setdefault("timeout", str(NAMES_S))
    try:
        session = _connect(COMMANDS["list_queues"], given)
        try:
            asked = {"vhost": given.vhost, "columns": ["name"]}
            return [str(row[0]) for row in session.ask("list_queues", asked)["rows"][:NAMES_MAX]]
        finally:
            session.close()
    except Failed:
        return []


def hash_password(given: Given) -> Output:
    hashed = users.hashed(users.password(given, 0))["password_hash"]
    return Report({"hash": hashed}, hashed)


def no_run(session: Session | None, given: Given) -> Output:
    raise AssertionError("this is answered before a node is looked for")


LOCAL: Final = (
    Command(
        "help", "Help", "[<command>]", "Displays usage information for a command", "leveretctl help list_queues",
        no_run, 0, 1,
    ),
    Command(
        "version", "Help", "", "Displays the version of this tool", "leveretctl version", no_run, alone=version,
    ),
    Command(
        "autocomplete", "Help", "[<prefix>] [--names <nodes | queues>] [--vhost <vhost>]",
        "Provides command name autocomplete variants, or the names of nodes and queues",
        "leveretctl autocomplete list_q", no_run, 0, 1, {**VHOST, "names": "kind"}, alone=autocomplete,
    ),
    Command(
        "completion", "Help", "<bash | zsh | fish> [--program <leveretctl | leveret>]",
        "Prints a script with which a shell completes commands, options and columns",
        "leveretctl completion bash > ~/.local/share/bash-completion/completions/leveretctl", no_run, 1, 1,
        {"program": "program"}, alone=completion_script,
        more="For the current shell: source <(leveretctl completion bash). For zsh, save the output as _leveretctl "
        "in a folder of $fpath. For fish: leveretctl completion fish > ~/.config/fish/completions/leveretctl.fish",
    ),
    Command(
        "hash_password", "Users", "[<password>]", "Hashes a plaintext password, for a file of definitions",
        "leveretctl hash_password < password.txt", no_run, 0, 1, secret=0, alone=hash_password,
    ),
)  # fmt: skip
ALL: Final = (
    *LOCAL,
    *cluster.COMMANDS,
    *users.COMMANDS,
    *policies_and_limits.COMMANDS,
    *definitions.COMMANDS,
    *listings.COMMANDS,
    *leases.COMMANDS,
    *shovels.COMMANDS,
    *federation.COMMANDS,
    *spools.COMMANDS,
    *mqtt_state.COMMANDS,
    *mirrors.COMMANDS,
    *partitions.COMMANDS,
    *maintenance.COMMANDS,
    *rebalance.COMMANDS,
    *checks.COMMANDS,
    *runtime.COMMANDS,
    *runtime_settings.COMMANDS,
    *report.COMMANDS,
)
COMMANDS: Final[dict[str, Command]] = {command.name: command for command in ALL}
# Those of rabbitmq-plugins, whose words (list, set) are too general for leveretctl.
PLUGIN_COMMANDS: Final[dict[str, Command]] = {command.name: command for command in (*LOCAL[:2], *plugins.COMMANDS)}


def main(arguments: Sequence[str] | None = None, known: Mapping[str, Command] = COMMANDS) -> int:
    """Runs a command of leveretctl, or of another tool that has commands of its own."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="surrogateescape")  # Names that are no UTF-8 leave as the bytes they are.
    return guarded("leveretctl", lambda: run(words, known))


def run(words: list[str], known: Mapping[str, Command] = COMMANDS) -> int:
    command: Command | None = None
    try:
        name, given = parse(words, known)
        if name is None:
            asked = given.flag("help")
            print(help.overview(known.values(), bold), file=sys.stdout if asked else sys.stderr)
            return OK if asked else USAGE
        command = _command(name, known)
        if name == "help" or given.flag("help"):
            _help(command if name != "help" else _command(given.words[0], known) if given.words else None, known)
        else:
            _check_columns(command, given)
            _perform(command, given)
        sys.stdout.flush()
        return OK
    except Failed as failed:
        sys.stdout.flush()
        _explain(failed, command or _named(words, known), words)
        return failed.code


def _command(name: str, known: Mapping[str, Command]) -> Command:
    if name in REFUSED and name not in known:
        raise Failed(USAGE, f"'{name}' is not offered: {REFUSED[name]}", ONE_LINE)
    if name not in known:
        raise Failed(USAGE, help.unknown(name, known), PLAIN)
    return known[name]


def _named(words: list[str], known: Mapping[str, Command]) -> Command | None:
    """The command of a line that could not be read."""
    return next((known[word] for word in words if word in known), None)


def _help(command: Command | None, known: Mapping[str, Command]) -> None:
    print(help.overview(known.values(), bold) if command is None else help.describe(command, bold))


def _check_columns(command: Command, given: Given) -> None:
    """Columns may also be given with commas between them, as rabbitmqctl allows it."""
    if not command.columns:
        return

    def unknown_in(words: list[str]) -> list[str]:
        return sorted({name for word in words for name in word.split(",") if name and name not in command.columns})

    names = [word for word in given.words if unknown_in([word])]
    if command.takes_name and len(names) == 1:
        given.words.remove(names[0])
        given.switches["only"] = names[0]  # If there is none of that name, the node refuses it as a column.
    unknown = unknown_in(given.words)
    given.words[:] = [name for word in given.words for name in word.split(",") if name]
    if unknown:
        raise Failed(USAGE, f"Info key(s) {','.join(unknown)} are not supported", VALIDATION)


# -- Talking to the node -------------------------------------------------------------------------------------------


def _perform(command: Command, given: Given) -> None:
    if command.alone is not None:
        _print(command.alone(given), given, "")
        return
    session = _session(command, given)
    try:
        output = command.run(session, given)
        session.show_banner()
        _print(output, given, session.name)
    except Failed as failed:
        if failed.value is None or given.switches.get("formatter") not in ("json", "json_stream"):
            raise
        _print(Report(failed.value, ""), given, session.name)
        raise Failed(failed.code, failed.text, TOLD) from None
    finally:
        session.close()


def _session(command: Command, given: Given) -> Session:
    """A session with the node that is meant, of which the name is known. Raises Failed."""
    import time

    deadline = time.monotonic() + given.timeout_s(cluster.AWAIT_S)
    while True:
        try:
            return _connect(command, given)
        except Failed as failed:
            left_s = deadline - time.monotonic()
            if not command.waits or failed.code != UNAVAILABLE or left_s <= 0:
                raise
            time.sleep(min(0.1, left_s))


def _connect(command: Command, given: Given) -> Session:
    from leveret.cli.ctl.base.connect import find_target
    from leveret.cli.ctl.base.formatters import MACHINE_READABLE
    from leveret.cli.ctl.base.session import Session

    mute = given.flag("quiet") or given.flag("silent") or given.switches.get("formatter") in MACHINE_READABLE

    def say(text: str) -> None:
        if not mute:
            print(text, flush=True)

    timeout_s = given.timeout_s(0) if "timeout" in given.switches else None
    terminal = sys.stdout if sys.stdout.isatty() and not mute else None
    session = Session(find_target(given), command.name, timeout_s, say, _warn, bold, terminal)
    entry = session.target.entry
    if entry is None or entry.name != session.name or command.waits:
        try:
            session.learn_name()
        except Failed:
            session.close()
            raise
    return session


# -- Printing ------------------------------------------------------------------------------------------------------


def bold(text: str) -> str:
    return f"\033[1m{text}\033[0m" if sys.stdout.isatty() else text


def _warn(text: str) -> None:
    print(text, file=sys.stderr)


def _print(output: Output, given: Given, node: str) -> None:
    from leveret.cli.ctl.base.formatters import lines

    formatter = given.text("formatter", "table")
    if output is None and formatter not in ("json", "json_stream"):
        return
    headers = not given.flag("silent") and not given.flag("no-table-headers")
    for line in lines(output, formatter, node, headers, bold):
        print(line)


def _explain(failed: Failed, command: Command | None, words: list[str]) -> None:
    """The error on stderr, as rabbitmqctl writes it."""
    if failed.form == TOLD:
        pass
    elif failed.form == HEADED:
        _warn(f"Error:\n{failed.text}")
    elif failed.form == ONE_LINE:
        _warn(f"Error: {failed.text}")
    elif failed.form in (VALIDATION, WITH_USAGE):
        validation = " (argument validation)" if failed.form == VALIDATION else ""
        _warn(f"Error{validation}: {failed.text}\nArguments given:\n\t{' '.join(_shown(command, words))}\n")
        if command is not None:
            _warn(help.usage(command, str))
    else:
        _warn(failed.text)


def _shown(command: Command | None, words: list[str]) -> list[str]:
    """The command line again, without a password: logs of scripts are read by many."""
    if command is None or command.secret is None or command.name not in words:
        return words
    place = words.index(command.name) + 1 + command.secret
    return words[:place] + ["..."] * (len(words) > place)
