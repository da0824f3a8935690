"""Shell completion for `leveretctl` and `leveret`: a script for bash, zsh or fish, made from the commands there are.

All three do the same. What has been typed is gone through word by word; as long as the words make up a command
(`cluster`, then `cluster start`), that is the *place*, and for each place there is a list of what may follow: commands,
options, columns. After an option that wants a value, only its values are offered: files, formatters, or nothing.
Where the name of a queue or of a node is due, `leveretctl autocomplete --names` is asked for those there are: for nodes
it looks at this machine, for queues it asks the node. Names that a shell would read otherwise are not offered.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

SHELLS: Final = ("bash", "zsh", "fish")
PROGRAMS: Final = ("leveretctl", "leveret")


class Follow(NamedTuple):
    """The words that may come at one place of a command line."""

    words: tuple[tuple[str, str], ...]  # each with what it is about
    options: tuple[str, ...]


class Tree(NamedTuple):
    program: str
    places: dict[str, Follow]  # "" is behind the program's name
    values: dict[str, tuple[str, ...]]  # of options; none: anything
    files: tuple[str, ...]  # options whose values are files or folders
    common: tuple[str, ...] = ()  # options that may come anywhere
    names: Mapping[str, str] = MappingProxyType({})  # places and options where names are due: of "queues" or "nodes"


def script(program: str, shell: str) -> str:
    tree = _of_leveretctl() if program == "leveretctl" else _of_leveret()
    makers: dict[str, Callable[[Tree], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    return makers[shell](tree)


# -- What there is -------------------------------------------------------------------------------------------------


def _of_leveretctl() -> Tree:
    from leveret.cli.ctl.base.parse import COMMON, FORMATTERS, SHORT
    from leveret.cli.ctl.main import ALL
    from leveret.node.config.settings import LOG_CATEGORIES, LOG_LEVELS

    common = (*(f"--{name}" for name in COMMON), *(f"-{letter}" for letter in SHORT if letter not in "Nd?"))
    names = tuple((command.name, command.about) for command in ALL)
    places = {"": Follow(names, ())}
    further: dict[str, tuple[tuple[str, str], ...]] = {
        "help": names,
        "autocomplete": (),
        "completion": tuple((shell, "") for shell in SHELLS),
        "set_log_level": tuple((level, "") for level in LOG_LEVELS),
    }
    for command in ALL:
        words = further.get(command.name, tuple((column, "") for column in command.columns))
        places[command.name] = Follow(words, tuple(f"--{name}" for name in command.switches if name not in COMMON))
    values: dict[str, tuple[str, ...]] = {f"--{name}": () for name, value in COMMON.items() if value is not None}
    values |= {f"-{letter}": () for letter, name in SHORT.items() if COMMON.get(name) is not None}
    values |= {f"--{name}": () for one in ALL for name, value in one.switches.items() if value is not None}
    values |= {
        "--formatter": FORMATTERS,
        "--category": LOG_CATEGORIES,
        "--program": PROGRAMS,
        "--apply-to": ("queues", "exchanges", "all", "classic_queues", "quorum_queues", "streams"),
        "--unit": ("gb", "mb", "kb", "bytes", "days", "weeks", "months", "years"),
        "--address-family": ("ipv4", "ipv6"),
    }
    files = ("--cookie-file", "--tls-cert-file", "--tls-key-file", "--tls-ca-cert-file")
    due = {"--node": "nodes", "-n": "nodes"}
    due |= {one.name: "queues" for one in ALL if "<queue>" in one.usage}
    due |= {one.name: "nodes" for one in ALL if "node>" in one.usage and "<queue>" not in one.usage}
    due |= {f"--{name}": "nodes" for one in ALL for name, value in one.switches.items() if value == "node"}
    return Tree("leveretctl", places, values, files, common, due)


def _of_leveret() -> Tree:
    from leveret.cli.main import build_parser
    from leveret.cli.pipeline import JOBS

    places: dict[str, Follow] = {}
    values: dict[str, tuple[str, ...]] = {}
    files: list[str] = []

    def walk(parser: argparse.ArgumentParser, place: str) -> None:
        words: list[tuple[str, str]] = []
        options: list[str] = []
        for action in parser._actions:
            options += action.option_strings
            if action.option_strings and action.nargs != 0:
                values.update(dict.fromkeys(action.option_strings, tuple(map(str, action.choices or ()))))
                if action.metavar in ("DIR", "FILE"):
                    files.extend(action.option_strings)
            if isinstance(action, argparse._SubParsersAction):
                about = {choice.dest: choice.help or "" for choice in action._choices_actions}
                for name, below in action.choices.items():
                    words.append((name, about.get(name, "")))
                    walk(below, f"{place} {name}".strip())
            elif not action.option_strings and action.choices:
                words += [(str(one), "") for one in action.choices]
        places[place] = Follow(tuple(words), tuple(options))

    walk(build_parser(), "")
    places["pipeline"] = Follow(tuple((job, "") for job in JOBS), places["pipeline"].options)
    return Tree("leveret", places, values, tuple(dict.fromkeys(files)))


# -- bash ----------------------------------------------------------------------------------------------------------

_BASH: Final = """\
# bash completion for {program}. To use it in this shell: source <({program} completion bash)
_{program}() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}" place="" word longer words
    case "$previous" in
{values}
    esac
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        longer="${{place:+$place }}$word"
        case "$longer" in
            {known}) place="$longer" ;;
        esac
    done
    case "$place" in
{places}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    if [[ ${{#COMPREPLY[@]}} -eq 0 && "$current" != -* ]]; then
        compopt -o default 2>/dev/null
    fi
}}
complete -F _{program} {program}
"""


def _bash(tree: Tree) -> str:
    values = []
    for option, choices in tree.values.items():
        if option in tree.files:
            offered = 'COMPREPLY=($(compgen -f -- "$current")); '
        else:
            words = _asked(tree, option) or " ".join(choices)
            offered = f'COMPREPLY=($(compgen -W "{words}" -- "$current")); ' if words else ""
        values.append(f"        {option}) {offered}return ;;")
    places = []
    for place, follow in tree.places.items():
        words = " ".join([*(word for word, _ in follow.words), *follow.options, *tree.common, _asked(tree, place)])
        words = words.rstrip()
        places.append(f'        "{place}") words="{words}" ;;')
    known = "|".join(f'"{place}"' for place in tree.places if place)
    return _BASH.format(program=tree.program, values="\n".join(values), known=known, places="\n".join(places)).rstrip()


# -- zsh -----------------------------------------------------------------------------------------------------------

_ZSH: Final = """\
#compdef {program}
# zsh completion for {program}: put this file as _{program} into a folder of $fpath
_{program}() {{
    local place="" word longer
    local -a offered
    case "${{words[CURRENT-1]}}" in
{values}
    esac
    for word in "${{(@)words[2,CURRENT-1]}}"; do
        longer="${{place:+$place }}$word"
        case "$longer" in
            ({known}) place="$longer" ;;
        esac
    done
    case "$place" in
{places}
    esac
    _describe -o '{program}' offered || _files
}}
_{program} "$@"
"""


def _zsh(tree: Tree) -> str:
    values = []
    for option, choices in tree.values.items():
        if option in tree.files:
            offered = "_files"
        else:
            words = _asked(tree, option, "zsh") or " ".join(choices)
            offered = f"compadd -- {words}" if words else ":"
        values.append(f"        ({option}) {offered}; return ;;")
    places = []
    for place, follow in tree.places.items():
        entries = [_zsh_entry(*one) for one in follow.words] + [
            _zsh_entry(one, "") for one in (*follow.options, *tree.common)
        ]
        entries += filter(None, [_asked(tree, place, "zsh")])
        places.append(f'        ("{place}") offered=({" ".join(entries)}) ;;')
    known = "|".join(f'"{place}"' for place in tree.places if place)
    return _ZSH.format(program=tree.program, values="\n".join(values), known=known, places="\n".join(places)).rstrip()


def _zsh_entry(word: str, about: str) -> str:
    escaped = word.replace(":", "\\:")
    return _quoted(f"{escaped}:{_first_sentence(about)}" if about else escaped)


# -- fish ----------------------------------------------------------------------------------------------------------

_FISH: Final = """\
# fish completion for {program}: save it as ~/.config/fish/completions/{program}.fish
set -g __{program}_places {known}
function __{program}_at --argument-names wanted
    set -l place ""
    for word in (commandline -opc)[2..-1]
        set -l longer (string trim -- "$place $word")
        if contains -- "$longer" $__{program}_places
            set place $longer
        end
    end
    test "$place" = "$wanted"
end
{lines}"""


def _fish(tree: Tree) -> str:
    lines = [f"complete -c {tree.program} -f"]
    lines += [f"complete -c {tree.program} {_fish_option(tree, option)}" for option in tree.common]
    for place, follow in tree.places.items():
        when = _quoted(f"__{tree.program}_at {_quoted(place)}" if " " in place else f"__{tree.program}_at '{place}'")
        for word, about in follow.words:
            described = f" -d {_quoted(_first_sentence(about))}" if about else ""
            lines.append(f"complete -c {tree.program} -n {when} -a {_quoted(word)}{described}")
        if place in tree.names:
            lines.append(f"complete -c {tree.program} -n {when} -a {_quoted(_asked(tree, place, 'fish'))}")
        for option in follow.options:
            lines.append(f"complete -c {tree.program} -n {when} {_fish_option(tree, option)}")
    known = " ".join(_quoted(place) for place in tree.places if place)
    return _FISH.format(program=tree.program, known=known, lines="\n".join(lines))


def _fish_option(tree: Tree, option: str) -> str:
    dashes = len(option) - len(option.lstrip("-"))
    letter = "-l" if dashes == 2 else "-s" if len(option) == 2 else "-o"
    wanted = f"{letter} {option.lstrip('-')}"
    if option not in tree.values:
        return wanted
    if option in tree.files:
        return f"{wanted} -r -F"
    known = _asked(tree, option, "fish") or " ".join(tree.values[option])
    return f"{wanted} -x" + (f" -a {_quoted(known)}" if known else "")


def _asked(tree: Tree, where: str, shell: str = "bash") -> str:
    """Return the command that a shell runs to get the names for one place."""
    if where not in tree.names:
        return ""
    asked = f"leveretctl autocomplete --names {tree.names[where]} 2>/dev/null"
    return f"({asked})" if shell == "fish" else f"$({asked})"


def _quoted(text: str) -> str:
    """In single quotes, as every shell reads them."""
    escaped = text.replace("'", "'\\''")
    return f"'{escaped}'"


def _first_sentence(text: str) -> str:
    return re.split(r"\. |; |: ", text, maxsplit=1)[0].rstrip(".")
