"""Translates a `rabbitmq.config` of the classic format, Erlang terms, into lines of `rabbitmq.conf`.

Such a file is not used: half of what it can say has no meaning outside of Erlang, and to use the rest silently would be
worse. But its owner is told what to write instead, as far as it is known.

    [{rabbit, [{tcp_listeners, [5672]}, {cluster_partition_handling, autoheal}]}].
    listeners.tcp.1 = 5672
    cluster_partition_handling = autoheal
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from leveret.node.config import schema

DEPTH_MAX: Final = 32
TOKEN: Final = re.compile(
    r"""\s+ | %[^\n]* | (?P<string>"(?:[^"\\]|\\.)*") | (?P<quoted>'(?:[^'\\]|\\.)*')
    | (?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?) | (?P<atom>[a-z][A-Za-z0-9_@]*) | (?P<mark><<|>>|[\[\]{}(),.|])
    """,
    re.VERBOSE,
)


class BadTerms(Exception):
    """These are no Erlang terms."""


class Pair(tuple[Any, ...]):
    """An Erlang tuple."""


def is_classic(text: str) -> bool:
    """Returns whether a file holds Erlang terms: its first character outside of comments opens a list."""
    return re.match(r"(?:\s+|%[^\n]*\n)*\[", text) is not None


def parse(text: str) -> Any:
    """Parses Erlang terms. Raises BadTerms."""
    tokens = _tokens(text)
    term = _term(tokens, next(tokens), 0)
    return term


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        found = TOKEN.match(text, at)
        if found is None:
            raise BadTerms(f"line {text.count(chr(10), 0, at) + 1}: {text[at : at + 20].splitlines()[0]!r}")
        at = found.end()
        if found.lastgroup is not None:
            yield found.lastgroup, found[0]
    while True:
        yield "mark", ""


def _term(tokens: Iterator[tuple[str, str]], token: tuple[str, str], depth: int) -> Any:
    kind, text = token
    if depth > DEPTH_MAX:
        raise BadTerms("lists within lists, too deep")
    if kind in ("string", "quoted"):
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    if kind == "number":
        return text
    if kind == "atom":
        return text
    if text == "<<":
        inner = next(tokens)
        value = "" if inner[1] == ">>" else _term(tokens, inner, depth + 1)
        if inner[1] != ">>" and next(tokens)[1] != ">>":
            raise BadTerms("a binary that has no end")
        return value
    if text in ("[", "{"):
        end, items = {"[": "]", "{": "}"}[text], []
        token = next(tokens)
        while token[1] != end:
            items.append(_term(tokens, token, depth + 1))
            token = next(tokens)
            if token[1] == ",":
                token = next(tokens)
            elif token[1] != end:
                raise BadTerms(f"{token[1] or 'the end'!r} where a comma or {end} was due")
        return items if text == "[" else Pair(items)
    raise BadTerms(f"{text or 'the end'!r} where a term was due")


# -- The same in other words ---------------------------------------------------------------------------------------

_APPLICATIONS: Final = {
    "rabbit": "",
    "kernel": "",
    "rabbitmq_management": "management.",
    "rabbitmq_prometheus": "prometheus.",
}


def translated(text: str) -> tuple[list[str], list[str]]:
    """Returns lines for `rabbitmq.conf`, and the names of settings that have none. Raises BadTerms."""
    lines: list[str] = []
    unknown: list[str] = []
    terms = parse(text)
    for one in terms if isinstance(terms, list) else ():
        if not isinstance(one, Pair) or len(one) != 2 or not isinstance(one[1], list):
            unknown.append(_shown(one))
            continue
        application, settings = one
        for setting in settings:
            found = _lines(str(application), setting)
            if found:
                lines += (f"{key} = {'********' if 'pass' in key else value}" for key, value in found)
            else:
                name = setting[0] if isinstance(setting, Pair) and setting else setting
                unknown.append(f"{application}.{_shown(name)}")
    return lines, unknown


def _lines(application: str, setting: Any) -> list[tuple[str, str]]:
    if application not in _APPLICATIONS or not isinstance(setting, Pair) or len(setting) != 2:
        return []
    name, value = str(setting[0]), setting[1]
    special = _SPECIAL.get((application, name))
    found = list(special(value)) if special is not None else [(_APPLICATIONS[application] + name, value)]
    lines = [(key, _shown(one)) for key, one in found if isinstance(one, str)]
    known = all(schema.find(key) is not None for key, _ in lines)
    return lines if known and len(lines) == len(found) else []


def _listeners(group: str) -> Any:
    def of(value: Any) -> Iterator[tuple[str, Any]]:
        for number, one in enumerate(value if isinstance(value, list) else [value], 1):
            yield f"{group}.{number}", f"{one[0]}:{one[1]}" if isinstance(one, Pair) and len(one) == 2 else one
        if value == []:
            yield group, "none"

    return of


def _limit(group: str) -> Any:
    def of(value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, Pair) and len(value) == 2:
            yield f"{group}.{'absolute' if value[0] == 'absolute' else 'relative'}", value[1]
        else:
            small = isinstance(value, str) and re.fullmatch(r"[01]?\.\d+|[01]", value)
            yield f"{group}.{'relative' if small else 'absolute'}", value

    return of


def _partitions(value: Any) -> Iterator[tuple[str, Any]]:
    key = "cluster_partition_handling"
    if isinstance(value, Pair) and len(value) == 3 and isinstance(value[1], list):
        yield key, value[0]
        yield f"{key}.pause_if_all_down.recover", value[2]
        yield from ((f"{key}.pause_if_all_down.nodes.{number}", one) for number, one in enumerate(value[1], 1))
    else:
        yield key, value


def _nodes(value: Any) -> Iterator[tuple[str, Any]]:
    names = value[0] if isinstance(value, Pair) and value else value
    for number, name in enumerate(names if isinstance(names, list) else [], 1):
        yield f"cluster_formation.classic_config.nodes.{number}", name


def _users(value: Any) -> Iterator[tuple[str, Any]]:
    for name in value if isinstance(value, list) else []:
        yield f"loopback_users.{name}", "true"
    if value == []:
        yield "loopback_users", "none"


def _tags(value: Any) -> Iterator[tuple[str, Any]]:
    for name in value if isinstance(value, list) else []:
        yield f"default_user_tags.{name}", "true"


def _permissions(value: Any) -> Iterator[tuple[str, Any]]:
    for name, one in zip(("configure", "write", "read"), value if isinstance(value, list) else (), strict=False):
        yield f"default_permissions.{name}", one


def _mechanisms(value: Any) -> Iterator[tuple[str, Any]]:
    for number, name in enumerate(value if isinstance(value, list) else [], 1):
        yield f"auth_mechanisms.{number}", name


def _options(prefix: str) -> Any:
    def of(value: Any) -> Iterator[tuple[str, Any]]:
        for one in value if isinstance(value, list) else []:
            if isinstance(one, Pair) and len(one) == 2 and isinstance(one[1], list):
                yield from ((f"{prefix}.{one[0]}.{number}", item) for number, item in enumerate(one[1], 1))
            elif isinstance(one, Pair) and len(one) == 2:
                yield f"{prefix}.{one[0]}", one[1]

    return of


_SPECIAL: Final[dict[tuple[str, str], Any]] = {
    ("rabbit", "tcp_listeners"): _listeners("listeners.tcp"),
    ("rabbit", "ssl_listeners"): _listeners("listeners.ssl"),
    ("rabbit", "ssl_options"): _options("ssl_options"),
    ("rabbit", "tcp_listen_options"): _options("tcp_listen_options"),
    ("rabbit", "vm_memory_high_watermark"): _limit("vm_memory_high_watermark"),
    ("rabbit", "disk_free_limit"): _limit("disk_free_limit"),
    ("rabbit", "cluster_partition_handling"): _partitions,
    ("rabbit", "cluster_nodes"): _nodes,
    ("rabbit", "loopback_users"): _users,
    ("rabbit", "default_user_tags"): _tags,
    ("rabbit", "default_permissions"): _permissions,
    ("rabbit", "auth_mechanisms"): _mechanisms,
    ("rabbitmq_management", "listener"): _options("management.tcp"),
    ("rabbitmq_management", "load_definitions"): lambda value: iter([("load_definitions", value)]),
}


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if text and "#" not in text and text == text.strip() else f"'{text}'"
