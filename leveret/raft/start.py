"""How a cluster begins, and how one node goes on when the others are gone for ever.

A node that founds a cluster writes one entry before it starts: a membership of itself alone. A node that joins writes
nothing; it is told everything by the leader, beginning with that entry.
"""

from __future__ import annotations

from collections.abc import Sequence

from leveret.raft.membership import Member, Membership, check_member, encode_membership
from leveret.raft.messages import Entry, HardState, Kind


def bootstrap(member: Member) -> tuple[HardState, Entry]:
    """What the first node of a cluster has on disk before it starts."""
    check_member(member)
    return HardState(1, None), Entry(1, 1, Kind.MEMBERSHIP, encode_membership(Membership((member,))))


def force_alone(
    member: Member, hard_state: HardState, last_index: int, entries: Sequence[Entry]
) -> tuple[HardState, Entry]:
    """UNSAFE: what to add to a node's log to make it the only member, without asking anybody.

    For an operator who knows that a majority will never return. Whatever is in this node's log counts as committed from
    then on, and what only the others had is lost. If one of the others does come back, there are two clusters; its data
    must be deleted before it joins again.
    """
    check_member(member)
    term = max([hard_state.term, *(entry.term for entry in entries[-1:])]) + 1
    entry = Entry(last_index + 1, term, Kind.MEMBERSHIP, encode_membership(Membership((member,))))
    return HardState(term, None), entry
