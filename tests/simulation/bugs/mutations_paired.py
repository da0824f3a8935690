"""Deliberate bugs in how one of two nodes goes on alone: see `mutations`."""

from __future__ import annotations

from typing import Final

from tests.simulation.bugs.mutations import Mutation

PAIRED: Final = (
    Mutation(
        "a link that is lost is proof enough",
        2,
        "TwoNodes.tick",
        "self.taken = cluster.environment.take(place)",
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
        "TwoNodes._outlive",
        "raft.outlive(dead.id, remains)",
        "raft.outlive(dead.id)",
        first=1,
        mirrored=True,
        paired=True,
    ),
    Mutation(
        "refused connections are trusted, and the leader goes on without any proof",
        2,
        "TwoNodes._spare",
        "self.cluster.raft.dismissable = frozenset(one for one, trusts in self.trusts.items() if not trusts)",
        "self.cluster.raft.dismissable = frozenset(self.trusts)",
        first=24,
        mirrored=True,
        paired=True,
    ),
    Mutation(
        "a refused connection is proof, though nobody has said that it is",
        2,
        "TwoNodes.on_nobody_listens",
        "trusts = self.cluster.settings.trusts_refusals and self.has_served",
        "trusts = self.has_served",
        first=1,
        mirrored=True,
        paired=True,
    ),
    Mutation(
        "a lock is believed that was never seen to be held",
        2,
        "TwoNodes.on_signs",
        "place is not None and self.cluster.environment.is_held(place)",
        "place is not None",
        first=24,
        mirrored=True,
        paired=True,
    ),
    Mutation(
        "a node that was just started believes the first refusal",
        2,
        "TwoNodes.on_nobody_listens",
        "trusts = self.cluster.settings.trusts_refusals and self.has_served\n"
        "if missing is None or missing.name != name or missing.id not in self.lost_at or not trusts:\n"
        "    return\n"
        "if self.taken is None and missing.id in self.trusts: ...",
        "if missing is None or missing.name != name or not self.cluster.settings.trusts_refusals:\n"
        "    return\n"
        "if self.taken is None: ...",
        first=13,
        mirrored=True,
        paired=True,
    ),
    Mutation(
        "a node believes a refusal before it has heard what it has missed",
        2,
        "TwoNodes.on_nobody_listens",
        "trusts = self.cluster.settings.trusts_refusals and self.has_served",
        "trusts = self.cluster.settings.trusts_refusals",
        first=13,
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
            "record = DetachedRecord(detached.anchors, detached.verdicts())",
            "record = DetachedRecord(detached.anchors, [])",
            3,
        ),
        (
            "one message too many is taken for acknowledged",
            "DetachedQueue.record",
            "note_range(state, kind, ranges, first, last)",
            "note_range(state, kind, ranges, first, last + 1)",
            3,
        ),
        (
            "what is acknowledged out of a spool is sent on all the same",
            "SpoolDelivery.settle",
            "spool.settle_lent(span)",
            "self.lent_count += span.count\nself._put_aside(span)",
            3,
        ),
        (
            "what clients have seen out of a spool is sent on without a mark",
            "SpoolDelivery.end",
            "self.spool.raise_doubt(self.shown)",
            "pass",
            3,
        ),
        (
            "what is left of a spool when the other node is back is forgotten",
            "SpoolDelivery.recall",
            "self.give_back(batch, 0, len(batch.contents))",
            "self.settle(batch, 0, len(batch.contents), 64)",
            3,
        ),
        (
            "what is in doubt is delivered out of a spool without a mark",
            "SpooledBatch._lend",
            "self.mark_redelivered(0, self.left)",
            "pass",
            3,
        ),
        (
            "a message of a spool is lent, and is ready to be sent on as well",
            "SpoolDelivery._lend",
            "reader.take_spooled(batch)",
            "reader.take_spooled(batch)\nself.aside.add(span.first, span.last)",
            3,
        ),
    )
)
