"""Answers as text that can be compared: every field with its type, and the same for the same in every run."""

from __future__ import annotations

import re
import time
from dataclasses import fields
from typing import Any, Final

from leveret.protocol import methods as m
from leveret.protocol.properties import Properties
from leveret.protocol.tables import Field
from tests.support.machines import FOSSILS, Reply, short

PLAIN_KINDS: Final = frozenset("SltdVx")  # What a literal in a conversation becomes, so it is shown as that literal.
NEARLY_NOW_S: Final = 600
_REPLY_TO: Final = r"amq\.rabbitmq\.reply-to\.[^'\"\s,}]+"
_MADE_UP: Final = re.compile(rf"(?P<prefix>amq\.(?:gen|ctag)-)[\w-]{{22}}|{_REPLY_TO}")
_NUMBERED: Final = re.compile(r"(?:amq\.(?:gen|ctag)-|amq\.rabbitmq\.reply-to\.)\d+\b")
_ADDRESS: Final = re.compile(r"127\.0\.0\.1:\d+")


class Now:
    def __repr__(self) -> str:
        return "now"


def literal(field: Field) -> Any:
    """The field as one would write it in a conversation."""
    kind, value = field
    if kind == "F":
        return table(value)
    if kind == "A":
        return [literal(each) for each in value]
    if kind == "T" and abs(value - time.time()) < NEARLY_NOW_S:
        return ("T", Now())
    return value if kind in PLAIN_KINDS else (kind, value)


def table(value: dict[str, Field]) -> dict[str, Any]:
    return {name: literal(field) for name, field in value.items()}


def method_text(method: m.Method) -> str:
    parts = [method.name]
    for each in fields(method):  # type: ignore[arg-type]  # Every method is a dataclass.
        value = getattr(method, each.name)
        if each.name in FOSSILS or value is False:
            continue
        if isinstance(value, dict):
            value = table(value)
        parts.append(each.name if value is True else f"{each.name}={value!r}")
    return " ".join(parts)


def reply_text(reply: Reply) -> str:
    if reply.method is None:
        return "heartbeat"
    text = method_text(reply.method)
    if reply.properties is not None:
        given = {each.name: getattr(reply.properties, each.name) for each in fields(Properties)}
        given = {name: value for name, value in given.items() if value is not None}
        given = {name: table(value) if name == "headers" else value for name, value in given.items()}
        text += f" properties={given}" if given else ""
        text += f" body={short(reply.body)}"
    return text


class Names:
    """Made-up names by number: shown so, and understood where a conversation uses one."""

    def __init__(self, vhost: str, node: str) -> None:
        self.vhost = re.compile(rf"(vhost(?:':)? \\?'){re.escape(vhost)}(?=\\?')")
        self.node = node
        self.shown: dict[str, str] = {}

    def show(self, text: str) -> str:
        text = _ADDRESS.sub("127.0.0.1:port", _MADE_UP.sub(self._number, text))
        return self.vhost.sub(r"\1/", text).replace(self.node, "node@host")

    def _number(self, match: re.Match[str]) -> str:
        prefix = match["prefix"] or "amq.rabbitmq.reply-to."
        return self.shown.setdefault(match[0], f"{prefix}{len(self.shown) + 1}")

    def understand(self, line: str) -> str:
        real = {shown: name for name, shown in self.shown.items()}
        return _NUMBERED.sub(lambda match: real.get(match[0], match[0]), line)
