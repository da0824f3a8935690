"""Deliberate bugs in how one of two nodes goes on alone: see `mutations`."""

from __future__ import annotations

from typing import Final

from .mutations import Mutation

PAIRED: Final = (
    Mutation(
        "a link that is lost is proof enough",
        2,
        "node.surviving",
        "            self.taken = cluster.world.take(place)\n",
        '            self._outlive(missing, None, "its link is lost")\n            return\n',
        first=1,
        mirrored=True,
        paired=True,
    ),
    Mutation(
        "who was left behind takes the place of one that went on",
        2,
        "cluster.raft.core",
        "if self.id not in left.membership.voter_ids or not {",
        "if False and not {",
        first=1,
        mirrored=True,
        paired=True,
    ),
    Mutation(
        "what the dead one's log says does not matter",
        2,
        "node.surviving",
        "            raft.outlive(dead.id, remains)\n",
        "            raft.outlive(dead.id)\n",
        first=1,
        mirrored=True,
        paired=True,
    ),
    Mutation(
        "refused connections are trusted, and the leader goes on without any proof",
        2,
        "node.surviving",
        "frozenset(one for one, trusts in self.trusts.items() if not trusts)",
        "frozenset(self.trusts)",
        first=24,
        mirrored=True,
        paired=True,
    ),
)
