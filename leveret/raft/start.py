"""The first entry of a cluster, and the entry that lets one node continue when the others are lost for ever.

A node that founds a cluster writes one entry before it starts: a membership of itself alone. A node that joins writes
nothing; it gets all entries from the leader, beginning with that one.
"""

from __future__ import annotations

from collections.abc import Sequence

from leveret.raft.membership import Member, Membership, check_member, encode_membership
from leveret.raft.messages import Entry, HardState, Kind


def bootstrap(member: Member) -> tuple[HardState, Entry]:
    """Return what the first node of a cluster writes to disk before it starts."""
    check_member(member)
    return HardState(1, None), Entry(1, 1, Kind.MEMBERSHIP, encode_membership(Membership((member,))))


def force_alone(
    member: Member, hard_state: HardState, last_index: int, entries: Sequence[Entry]
) -> tuple[HardState, Entry]:
    """UNSAFE: return the entry that makes a node the only member, without asking any other.

    For an operator who knows that a majority will never return. All entries of this node's log count as committed from
    then on, and entries that only the others had are lost. If one of the others does come back, there are two clusters;
    its data must be deleted before it joins again.
    """
    check_member(member)
    term = max([hard_state.term, *(entry.term for entry in entries[-1:])]) + 1
    entry = Entry(last_index + 1, term, Kind.MEMBERSHIP, encode_membership(Membership((member,))))
    return HardState(term, None), entry
