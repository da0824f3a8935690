"""Deliberate bugs in a witness, and in what nodes take it for: see `mutations`."""

from __future__ import annotations

from typing import Final

from .mutations import Mutation

WITNESSED: Final = (
    Mutation(
        "a witness counts as a home for queues",
        2,
        "node.cluster",
        "return [one for one in self.everybody() if one.name not in apart]",
        "return self.everybody()",
        first=1,
        mirrored=True,
        witnessed=True,
    ),
    Mutation(
        "a witness votes without syncing",
        2,
        "node.witness",
        "        self.world = world\n",
        "        class Hasty:\n"
        "            def __getattr__(self, name, disk=world.disk):\n"
        "                return (lambda path: None) if name == 'sync' else getattr(disk, name)\n"
        "        self.world = world\n"
        "        world.disk = Hasty()\n",
        first=1,
        mirrored=True,
        witnessed=True,
    ),
    Mutation(
        "a witness keeps the leadership",
        2,
        "node.witness",
        "        return max(able, key=lambda one: (matches.get(one, 0), one), default=None)\n",
        "        return None\n",
        first=5,
        mirrored=True,
        witnessed=True,
    ),
    Mutation(
        "a witness does not count for a majority",
        2,
        "cluster.partitions",
        "is_majority = 2 * count > len(voters)",
        "is_majority = 2 * count > len(voters) + (len(voters) == 3)",
        first=5,
        mirrored=True,
        witnessed=True,
    ),
    Mutation(
        "a witness answers nobody who asks for its vote",
        2,
        "node.witness",
        "if self.cluster is not None and kind in CONSENSUS_FRAMES:",
        "if self.cluster is not None and kind in CONSENSUS_FRAMES and payload[:1] != b'\\x01':",
        first=1,
        mirrored=True,
        witnessed=True,
    ),
)
