"""The command line, read as rabbitmqctl reads it: options anywhere, before or after the command and its arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from leveret.base.control_protocol import VALIDATION
from leveret.base.exit_codes import USAGE
from leveret.cli.ctl.base.command import Command, Failed, Given

# For every command: long name -> what its value is called (None: it has none).
COMMON: Final[Mapping[str, str | None]] = {
    "node": "node",
    "host": "host",
    "port": "port",
    "cookie-file": "file",
    "tls-cert-file": "file",
    "tls-key-file": "file",
    "tls-ca-cert-file": "file",
    "vhost": "vhost",  # As in rabbitmqctl: scripts give it to all, also where no vhost matters.
    "timeout": "seconds",
    "formatter": "formatter",
    "quiet": None,
    "silent": None,
    "no-table-headers": None,
    "longnames": None,
    "help": None,
}
SHORT: Final = {
    "n": "node",
    "p": "vhost",
    "t": "timeout",
    "q": "quiet",
    "s": "silent",
    "l": "longnames",
    "N": "number",
    "d": "duration",
    "?": "help",
}
FORMATTERS: Final = ("table", "pretty_table", "json", "json_stream", "csv", "erlang", "string", "inspect")


def _takes_value(name: str, known: Mapping[str, Command], command: str | None) -> bool:
    if COMMON.get(name) is not None:
        return True
    found = known.get(command or "")
    if found is not None:
        return found.switches.get(name) is not None
    return any(one.switches.get(name) is not None for one in known.values())


def parse(arguments: Sequence[str], known: Mapping[str, Command]) -> tuple[str | None, Given]:
    """The command's name, and what it is given. Raises Failed.

    Whether an option belongs to the command is looked at here; how many words it takes is too.
    """
    command: str | None = None
    words: list[str] = []
    written: dict[str, str] = {}
    values: dict[str, str | bool] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--":
            words += rest if command is not None else rest[1:]
            command = command if command is not None else next(iter(rest), None)
            break
        name, value = _option(word)
        if name is None:
            if command is None:
                command = word
            else:
                words.append(word)
            continue
        shown = word.partition("=")[0]
        if _takes_value(name, known, command):
            if value is None:
                if not rest:
                    raise _bad_options([(shown, "")])
                value = rest.pop(0)
            values[name] = value
        elif value is not None:
            raise _bad_options([(shown, value)])
        else:
            values[name] = True
        written[name] = shown
    found = known.get(command or "")
    if found is not None:
        _check(found, words, values, written)
    return command, Given(words, values)


def _option(word: str) -> tuple[str | None, str | None]:
    """Its long name and the value after "="; None for the name of what is no option."""
    if word.startswith("--") and len(word) > 2:
        name, sign, value = word[2:].partition("=")
        return name.replace("_", "-"), value if sign else None
    if len(word) == 2 and word[0] == "-" and word[1] in SHORT:
        return SHORT[word[1]], None
    # Anything else with a dash may be an argument: a negative number, a pattern.
    return None, None


def _check(command: Command, words: list[str], values: Mapping[str, str | bool], written: Mapping[str, str]) -> None:
    if values.get("help"):
        return
    strange = [name for name in values if name not in COMMON and name not in command.switches]
    if strange:
        raise _bad_options([(written[name], _text(values[name])) for name in strange])
    numbers = (("number", str.isdecimal), ("duration", _is_seconds), ("within", str.isdecimal), ("pid", str.isdecimal))
    for name, fits in (("timeout", _is_seconds), ("port", _is_port), ("priority", _is_integer), *numbers):
        if name in values and not fits(str(values[name])):
            raise _bad_options([(written[name], str(values[name]))])
    formatter = values.get("formatter")
    if formatter is not None and formatter not in FORMATTERS:
        raise Failed(USAGE, f"unknown formatter '{formatter}'; use one of: {', '.join(FORMATTERS)}", VALIDATION)
    if len(words) < command.least:
        raise Failed(USAGE, "not enough arguments.", VALIDATION)
    if command.most is not None and len(words) > command.most:
        raise Failed(USAGE, "too many arguments.", VALIDATION)


def _text(value: str | bool) -> str:
    return value if isinstance(value, str) else ""


def _bad_options(options: list[tuple[str, str]]) -> Failed:
    lines = "\n".join(f"{name} : {value}" for name, value in options)
    return Failed(USAGE, f"Invalid options for this command:\n{lines}", VALIDATION)


def _is_seconds(text: str) -> bool:
    try:
        return 0 <= float(text) < 1e9
    except ValueError:
        return False


def _is_port(text: str) -> bool:
    return text.isdecimal() and 0 < int(text) < 65_536


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isdecimal()
