"""Makes limits small for the time of a run that a few hundred small messages would never reach.

Bugs are where limits are reached: contents that are paged out and read back, credit that is used up, consumers whose
window is full, publishers that have to wait, a log of commands that begins with a snapshot. The seed decides which
limits are small.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from leveret.node import server  # noqa: F401 (it imports all modules of a node)
from leveret.node.cluster import consensus_log

# Modules that have the limit, its name, and the small value.
SMALL: Final = (
    ("leveret.broker.", "KEEP_BYTES", 1_000),
    ("leveret.broker.", "CROWDED_AT", 10),
    ("leveret.broker.", "BATCH_MESSAGES_MAX", 4),
    ("leveret.broker.", "FIRST_CREDIT", 12_000),
    ("leveret.broker.", "FEED_BYTES_MAX", 4_000),
    ("leveret.broker.", "FLUSH_BYTES", 5_000),
    ("leveret.node.", "LOAD_BYTES", 2_000),
    ("leveret.node.", "PENDING_BYTES_MAX", 10_000),
    ("leveret.node.", "UNSENT_BYTES_MAX", 4_000),
    ("leveret.node.", "UNHEARD_BYTES_MAX", 20_000),
    ("leveret.node.", "KEEP_ENTRIES", 3),
)
# Drawn last, so that earlier seeds give the same runs.
OF_SPOOLS: Final = (
    ("leveret.broker.remote.store_and_forward", "BATCH_BYTES", 500),
    ("leveret.broker.remote.store_and_forward", "WINDOW_BYTES", 1_000),
    ("leveret.broker.remote.store_and_forward", "HOLD_BYTES", 300),
)
# Limits for one turn of a node, or one pass of its loop.
OF_TURNS: Final = (
    ("leveret.broker.mirrors.broadcast", "TOLD_AT_ONCE", 1),
    ("leveret.broker.mirrors.manager", "EFFECTS_AT_ONCE", 1),
    ("leveret.broker.mirrors.manager", "TICKED_AT_ONCE", 1),
    ("leveret.broker.mirrors.manager", "PROPOSED_AT_ONCE", 1),
    ("leveret.broker.policy_refresh", "RULED_AT_ONCE", 1),
    ("leveret.broker.mirrors.member_changes", "LOOKS_AT_ONCE", 1),
    ("leveret.node.cluster.consensus", "APPLIED_AT_ONCE", 1),
    ("leveret.broker.", "WORK_MAX", 25),  # For one or two dead letters.
    ("leveret.broker.", "EXPIRED_AT_ONCE", 1),
    ("leveret.broker.queue.ttl_and_length", "DROPPED_AT_ONCE", 1),
    ("leveret.broker.queue.ttl_and_length", "SIZED_AT_ONCE", 1),
)


@contextmanager
def small_limits(rng: random.Random) -> Iterator[None]:
    """Makes some limits small for the time of a run."""
    before: list[tuple[Any, str, Any]] = []

    def put(prefix: str, name: str, value: Any) -> None:
        """Sets a limit in all modules that imported it by name."""
        modules = [module for key, module in sorted(sys.modules.items()) if key.startswith(prefix)]
        having = [one for one in modules if hasattr(one, name) and one is not consensus_log]
        assert having, f"{name} is nowhere in {prefix}"
        for module in having:
            before.append((module, name, getattr(module, name)))
            setattr(module, name, value)

    try:
        for prefix, name, value in SMALL:
            if rng.random() < 0.4:
                put(prefix, name, value)
        if rng.random() < 0.5:
            log = functools.partial(consensus_log.ConsensusLog, segment_bytes=500, snapshot_after_bytes=1_000)
            put("leveret.node.", "ConsensusLog", log)
        for prefix, name, value in (*OF_SPOOLS, *OF_TURNS):
            if rng.random() < 0.5:
                put(prefix, name, value)
        yield
    finally:
        for module, name, value in reversed(before):
            setattr(module, name, value)
