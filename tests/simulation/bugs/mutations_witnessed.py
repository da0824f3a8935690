"""Deliberate bugs in a witness, and in what nodes take it for: see `mutations`."""

from __future__ import annotations

from typing import Final

from tests.simulation.bugs.mutations import Mutation

WITNESSED: Final = (
    Mutation(
        "a witness counts as a home for queues",
        2,
        "Cluster.members",
        "[one for one in self.everybody() if one.name not in apart]",
        "self.everybody()",
        first=1,
        mirrored=True,
        witnessed=True,
    ),
    Mutation(
        "a witness votes without syncing",
        2,
        "Witness.__init__",
        "self.environment = environment",
        "class Hasty:\n"
        "    def __getattr__(self, name, disk=environment.disk):\n"
        "        return (lambda path: None) if name == 'sync' else getattr(disk, name)\n"
        "self.environment = environment\n"
        "environment.disk = Hasty()",
        first=1,
        mirrored=True,
        witnessed=True,
    ),
    Mutation(
        "a witness keeps the leadership",
        2,
        "WitnessCluster._successor",
        "max(able, key=lambda one: (matches.get(one, 0), one), default=None)",
        "None",
        first=5,
        mirrored=True,
        witnessed=True,
    ),
    Mutation(
        "a witness does not count for a majority",
        2,
        "why_pause",
        "is_majority = 2 * count > len(voters)",
        "is_majority = 2 * count > len(voters) + (len(voters) == 3)",
        first=5,
        mirrored=True,
        witnessed=True,
    ),
    Mutation(
        "a witness answers nobody who asks for its vote",
        2,
        "Witness.on_frame",
        "self.cluster is not None and kind in CONSENSUS_FRAMES",
        "self.cluster is not None and kind in CONSENSUS_FRAMES and payload[:1] != b'\\x01'",
        first=1,
        mirrored=True,
        witnessed=True,
    ),
    Mutation(
        "a deposed master confirms what its own clients published",
        2,
        "MirrorManager._stopped",
        "take_unconfirmed(self.broker, mirror, queue)",
        "[sent.confirms._drop(sent) or sent.answer(0) for sent in take_unconfirmed(self.broker, mirror, queue)]",
        first=12,
        mirrored=True,
        witnessed=True,
    ),
)
