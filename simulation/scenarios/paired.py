"""Two nodes, one of which is killed, stopped or cut off: the other continues where it may, and never otherwise.

In a run with `--paired` there are two nodes, and the seed decides what can prove the death of one. They may be on one
machine, where the folder of a dead node can be taken: at once, or only a while after its death, or, as if they were on
two machines, never. And they may trust refused connections.

False proofs are drawn as well. The folder may be on a file system without locks: it always looks free, and can be taken
while its node lives. And where refusals are not trusted, a cut way may reject connections, as a firewall does: so a
node is refused by one that lives and has continued alone. (Where refusals are trusted, an operator has vouched that
only hosts refuse.)

One fault exists only in these runs: the leader is cut off for so long that it continues without the other node, dies
before the way is repaired, and is away when it is. Its death proves nothing then. Where refusals are trusted it would
not continue, so there the other node is killed, and started again when the leader has died; or before, and the leader
dies when the two have met, and the other node has not received yet what it has missed.

The checks are those of every run: one leader in a term, one history of the metadata, one master of a queue, and nothing
confirmed is lost. A node that believes too early that the other one is dead breaks one of them.
"""

from __future__ import annotations

import random
from typing import Final, NamedTuple

PAIRED_FAULTS: Final = (
    ("kill", 10),
    ("kill_leader", 8),
    ("terminate", 8),
    ("isolate", 6),
    ("cut_one_way", 3),
    ("pause", 4),
    ("restart_app", 3),
    ("stop_some", 2),
    ("abandon", 8),
)
HOPE_S: Final = 1.0  # How long a node waits for a proof that the other one is dead, before it disconnects clients.
DELAYS_S: Final = (0.0, 0.0, 0.05, 0.5, 3.0)


class Proofs(NamedTuple):
    """The ways in which a node may know that the other one is dead."""

    is_visible: bool  # Whether the other's folder can be seen.
    delay_s: float  # Time after a death until the folder can be taken.
    trusts_refusals: bool
    is_unlocked: bool = False  # The folder can be seen, and its lock is always free.
    is_rejecting: bool = False  # Cut ways refuse connections.


def draw_proofs(seed: int) -> Proofs:
    rng = random.Random(f"{seed}/proofs")
    is_visible, delay_s, trusts_refusals = rng.random() < 0.7, rng.choice(DELAYS_S), rng.random() < 0.3
    is_unlocked = not is_visible and rng.random() < 0.6
    return Proofs(is_visible, delay_s, trusts_refusals, is_unlocked, not trusts_refusals and rng.random() < 0.5)


NO_PROOFS: Final = Proofs(False, 0.0, False)
