"""Topics: files of conversations, and how one with `*` lines becomes several."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Final

from tests.support.machines import Conversation, conversations

HERE: Final = Path(__file__).parent
# Those that the machines are tested with; RabbitMQ is asked them too.
SHARED: Final = HERE.parents[1] / "support" / "conversations"
# What RabbitMQ answers now so, now otherwise: which of two queues is first when a channel has room again.
CHANCE: Final = frozenset({("core-consumers", "qos on two consumers shared")})
_EACH: Final = re.compile(r"\*\s*(\w+):\s*(.*)")
_PLACE: Final = re.compile(r"\$(\w+)")


class BadScript(ValueError):
    """A file of conversations that cannot be read."""


def topics() -> dict[str, Path]:
    files = [*(HERE / "conversations").glob("*.txt"), *SHARED.glob("*.txt")]
    found = {("core-" if file.parent == SHARED else "") + file.stem: file for file in files}
    return dict(sorted(found.items()))


def is_shared(topic: str) -> bool:
    return topics()[topic].parent == SHARED


def read_topic(name: str) -> list[Conversation]:
    read = [one for each in conversations(topics()[name].read_text(encoding="utf-8")) for one in expand(each)]
    titles = [each.title for each in read]
    twice = {title for title in titles if titles.count(title) > 1}
    if twice:
        raise BadScript(f"{name}: twice the same title: {', '.join(sorted(twice))}")
    return [each for each in read if (name, each.title) not in CHANCE]


def expand(conversation: Conversation) -> list[Conversation]:
    """One for each combination of the values of its `*` lines, without the answers that stand in it."""
    values: dict[str, list[str]] = {}
    lines = []
    for line in conversation.lines:
        match = _EACH.fullmatch(line)
        if match is not None:
            values[match[1]] = [each.strip() for each in match[2].split(" | ")]
        elif not line.startswith(" "):
            lines.append(line)
    made = []
    for chosen in product(*values.values()):
        given = dict(zip(values, chosen, strict=True))
        filled = [_fill(line, given) for line in [conversation.title, *lines]]
        made.append(Conversation(filled[0], filled[1:]))
    return made


def _fill(line: str, given: dict[str, str]) -> str:
    for name in _PLACE.findall(line):
        if name not in given:
            raise BadScript(f"no values for ${name}: {line}")
    return _PLACE.sub(lambda match: given[match[1]], line)
