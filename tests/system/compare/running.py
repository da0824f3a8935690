"""Many conversations at once, each in a vhost of its own for the time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Final

from tests.support.machines import Conversation
from tests.system.compare.cleaning import Cleaner
from tests.system.compare.session import Session, Step
from tests.system.compare.targets import VHOSTS, Answering
from tests.system.compare.verdict import Key

TOOL_MS: Final = 2_000  # rabbitmqctl takes so long.
Records = dict[Key, list[Step]]


def run(target: Answering, todo: Mapping[Key, Conversation], expected: Records | None = None) -> Records:
    """What was answered. `expected`: by the other broker."""
    cleaners = [Cleaner(target, letter) for letter in VHOSTS]
    free: SimpleQueue[Cleaner] = SimpleQueue()
    for cleaner in cleaners:
        free.put(cleaner)

    def hold(key: Key) -> list[Step]:
        cleaner = free.get()
        session = Session(target, cleaner.vhost, None if expected is None else expected.get(key))
        try:
            return session.hold(todo[key])
        finally:
            cleaner.clean(todo[key], session.names.shown)
            free.put(cleaner)

    ordered = sorted(todo, key=lambda key: -_length_ms(todo[key]))  # So that none begins a long one when others end.
    with ThreadPoolExecutor(len(VHOSTS)) as pool:
        found = dict(zip(ordered, pool.map(hold, ordered), strict=True))
    for cleaner in cleaners:
        cleaner.close()
    return found


def _length_ms(conversation: Conversation) -> int:
    waits = [int(line.split()[1]) for line in conversation.lines if line.startswith("wait ")]
    tools = [line for line in conversation.lines if line.startswith("ctl ")]
    return sum(waits) + TOOL_MS * len(tools)


def keyed(topics: Mapping[str, Sequence[Conversation]]) -> dict[Key, Conversation]:
    return {(topic, each.title): each for topic, conversations in topics.items() for each in conversations}
