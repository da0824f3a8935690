"""Limits that a run of a few hundred small messages would never reach, made small for the time of a run.

What happens at a limit is where bugs are: contents that are paged out and read back, credit that is used up, consumers
whose window is full, publishers that have to wait, a log of commands that begins with a snapshot. Each run draws which
of the limits it makes small.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from leveret.broker import home, queue, remote
from leveret.node import client, cluster, consensus_log, server, storage

# Of each: where it is to be found, and the small value.
SMALL: Final[tuple[tuple[tuple[Any, ...], str, int], ...]] = (
    ((queue,), "KEEP_BYTES", 1_000),
    ((queue,), "CROWDED_AT", 10),
    ((queue,), "BATCH_MESSAGES_MAX", 4),
    ((storage,), "LOAD_BYTES", 2_000),
    ((storage,), "PENDING_BYTES_MAX", 10_000),
    ((client,), "UNSENT_BYTES_MAX", 4_000),
    ((client,), "UNHEARD_BYTES_MAX", 20_000),
    ((remote, home), "FIRST_CREDIT", 12_000),
    ((remote, home), "FEED_BYTES_MAX", 4_000),
    ((remote, home), "FLUSH_BYTES", 5_000),
    ((cluster,), "KEEP_ENTRIES", 3),
)


@contextmanager
def small_limits(dice: random.Random) -> Iterator[None]:
    """Some limits are small meanwhile."""
    before: list[tuple[Any, str, Any]] = []

    def put(module: Any, name: str, value: Any) -> None:
        before.append((module, name, getattr(module, name)))
        setattr(module, name, value)

    for modules, name, value in SMALL:
        if dice.random() < 0.4:
            for module in modules:
                put(module, name, value)
    if dice.random() < 0.5:
        log = functools.partial(consensus_log.ConsensusLog, segment_bytes=500, snapshot_after_bytes=1_000)
        put(server, "ConsensusLog", log)
    try:
        yield
    finally:
        for module, name, value in reversed(before):
            setattr(module, name, value)
