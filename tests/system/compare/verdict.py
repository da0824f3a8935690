"""What was recorded, what is known to differ, and what that makes of a run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.machines import Conversation
from tests.system.compare.script import HERE
from tests.system.compare.session import THE_END, Step

DIFFERENCES: Final = HERE.parents[2] / "docs" / "differences.md"
PENDING: Final = HERE / "pending.txt"
_LISTED: Final = re.compile(r"- `([\w-]+): (.+)`")

Key = tuple[str, str]  # Topic and title.


class Difference(NamedTuple):
    key: Key
    steps: list[tuple[str, list[str], list[str]]]  # The line, RabbitMQ's answers, Leveret's.

    def __str__(self) -> str:
        lines = [f"{self.key[0]}: {self.key[1]}"]
        for line, theirs, ours in self.steps:
            lines.append(f"  {line}")
            if theirs == ours:
                lines += [f"    {_bare(each)}" for each in theirs]
            else:
                lines += [f"  - {_bare(each)}" for each in theirs] + [f"  + {_bare(each)}" for each in ours]
        return "\n".join(lines)


def _bare(line: str) -> str:
    return line.strip().removeprefix("< ")


def compare(key: Key, theirs: list[Step], ours: list[Step]) -> Difference | None:
    """None if they answered the same."""
    if theirs == ours:
        return None
    steps = []
    nothing: Step = ("", [])
    for their, our in zip_longest(theirs, ours, fillvalue=nothing):
        if their[0] != our[0] and their[0] and our[0]:
            return Difference(key, [("the conversation was changed since it was recorded", [their[0]], [our[0]])])
        steps.append((their[0] or our[0], their[1], our[1]))
    return Difference(key, steps)


# -- Records ---------------------------------------------------------------------------------------------------------


def is_recorded(conversation: Conversation, record: Mapping[str, list[Step]]) -> bool:
    """As it is written now."""
    steps = record.get(conversation.title)
    said = [line for line, _ in steps or () if line != THE_END]
    return steps is not None and said == conversation.lines


def record_file(topic: str) -> Path:
    return HERE / "recorded" / f"{topic}.json"


def load_record(topic: str) -> dict[str, list[Step]]:
    file = record_file(topic)
    if not file.exists():
        return {}
    record = json.loads(file.read_text(encoding="utf-8"))
    return {title: [_step(lines) for lines in steps] for title, steps in record.items()}


def _step(lines: list[str]) -> Step:
    return lines[0], lines[1:]


def save_record(topic: str, record: Mapping[str, list[Step]]) -> None:
    """One line for each step."""
    parts = []
    for title, steps in record.items():
        lines = ",\n".join(f"  {json.dumps([line, *answers])}" for line, answers in steps)
        parts.append(f" {json.dumps(title)}: [\n{lines}\n ]")
    record_file(topic).write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


# -- Lists -----------------------------------------------------------------------------------------------------------


def listed(file: Path) -> set[Key]:
    """The conversations that a file names, as "- `topic: title`"."""
    if not file.exists():
        return set()
    found = [match for line in file.read_text(encoding="utf-8").splitlines() if (match := _LISTED.match(line))]
    return {(match[1], match[2]) for match in found}


def write_pending(keys: Iterable[Key]) -> None:
    """The head of the file stays."""
    lines = PENDING.read_text(encoding="utf-8").splitlines()
    head = [line for line in lines if not _LISTED.match(line)]
    PENDING.write_text("\n".join([*head, *(f"- `{topic}: {title}`" for topic, title in sorted(keys))]) + "\n")
