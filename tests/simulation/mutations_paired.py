"""Deliberate bugs in how one of two nodes goes on alone: see `mutations`."""

from __future__ import annotations

from typing import Final

from .mutations import Mutation

PAIRED: Final = (
    Mutation(
        "a link that is lost is proof enough",
        2,
        "Surviving.tick",
        "self.taken = cluster.world.take(place)",
        'self._outlive(missing, None, "its link is lost")\nreturn',
        first=1,
        mirrored=True,
        paired=True,
    ),
    Mutation(
        "who was left behind takes the place of one that went on",
        2,
        "Raft.outlive",
        "self.id not in left.membership.voter_ids or not {self.id, peer}.issuperset(left.membership.voter_ids)",
        "False and not {self.id, peer}.issuperset(left.membership.voter_ids)",
        first=1,
        mirrored=True,
        paired=True,
    ),
    Mutation(
        "what the dead one's log says does not matter",
        2,
        "Surviving._outlive",
        "raft.outlive(dead.id, remains)",
        "raft.outlive(dead.id)",
        first=1,
        mirrored=True,
        paired=True,
    ),
    Mutation(
        "refused connections are trusted, and the leader goes on without any proof",
        2,
        "Surviving._spare",
        "self.cluster.raft.dismissable = frozenset(one for one, trusts in self.trusts.items() if not trusts)",
        "self.cluster.raft.dismissable = frozenset(self.trusts)",
        first=24,
        mirrored=True,
        paired=True,
    ),
)

# How the one that waits serves its clients with what it has: see `leveret.broker.mirrors.detached`.
DETACHED: Final = tuple(
    Mutation(name, 2, function, old, new, first=first, mirrored=True, paired=True, spooled=True)
    for name, function, old, new, first in (
        (
            "what a copy gives out is not marked",
            "DetachedQueue.take_in",
            "gap.redelivered = True",
            "gap.redelivered = False",
            3,
        ),
        (
            "acknowledgements to a copy are forgotten when the other node is back",
            "Detachment.pass_on",
            "said = Said(detached.anchors, detached.verdicts())",
            "said = Said(detached.anchors, [])",
            3,
        ),
        (
            "one message too many is taken for acknowledged",
            "DetachedQueue.record",
            "ranges.add(first, last)",
            "ranges.add(first, last + 1)",
            3,
        ),
    )
)
