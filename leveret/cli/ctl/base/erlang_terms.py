"""Values as Erlang and Elixir write them: `--formatter erlang` and `--formatter string`, for scripts that read those.

What is a binary in RabbitMQ and what an atom, JSON does not tell. So all texts are binaries here; names of columns and
true, false and undefined are atoms.
"""

from __future__ import annotations

import re
from typing import Any, Final

_ATOM: Final = re.compile(r"[a-z][A-Za-z0-9_@]*")
_KEY: Final = re.compile(r"[a-z_][A-Za-z0-9_]*[?!]?")


def erlang(value: Any) -> str:
    if value is None:
        return "undefined"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"<<{_quoted(value)}{'' if value.isascii() else '/utf8'}>>" if value else "<<>>"
    if isinstance(value, dict):
        return f"[{','.join(f'{{{_atom(name)},{erlang(one)}}}' for name, one in value.items())}]"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(erlang, value))}]"
    return str(value)


def elixir(value: Any) -> str:
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, dict):
        return f"[{', '.join(f'{_keyword(name)}: {elixir(one)}' for name, one in value.items())}]"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(elixir, value))}]"
    return str(value)


def _atom(name: Any) -> str:
    text = str(name)
    if _ATOM.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _keyword(name: Any) -> str:
    text = str(name)
    return text if _KEY.fullmatch(text) else _quoted(text)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return '"' + "".join(one if one.isprintable() else f"\\x{{{ord(one):X}}}" for one in escaped) + '"'
