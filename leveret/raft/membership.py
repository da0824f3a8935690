"""The members of a cluster, and changes of the membership.

A member is an *incarnation* of a node: its id is a UUID that was made when its data folder was. A node that lost its
disk and comes back under its old name has another id. It has lost its votes, so it must not count as the voter it was;
the old incarnation is removed, and the new one joins like any node.

Voters decide; learners only receive. A node that joins is a learner until it has caught up, because a voter without the
log raises the number needed for a majority and cannot be part of one. One of two voters that stops or is lost becomes a
learner too (`Demote`): see `leveret.node.cluster.two_nodes`.

A membership is a value, carried whole by the log entry that puts it in force. All nodes read addresses and priorities
from it, so they are kept nowhere else. Members are sorted by id: their order must not depend on the order of joining or
on hashing, or replays of a simulation would differ.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from leveret.base.packing import BadMessage, Reader, pack_text

ID_BYTES_MAX: Final = 64
MEMBERS_MAX: Final = 255
PRIORITY_MAX: Final = 255


class Member(NamedTuple):
    """One incarnation of a node. A voter with a higher priority is the first to stand for election."""

    id: str
    name: str
    address: str
    priority: int = 0


@dataclass(frozen=True, slots=True)
class AddLearner:
    """Adds a node as a learner."""

    member: Member


@dataclass(frozen=True, slots=True)
class Promote:
    """Makes a learner a voter."""

    id: str


@dataclass(frozen=True, slots=True)
class Demote:
    """Makes a voter a learner. For majorities that is the same as removing it, and as safe."""

    id: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Removes a member."""

    id: str


@dataclass(frozen=True, slots=True)
class Update:
    """Changes the name, address or priority of the member with this id."""

    member: Member


@dataclass(frozen=True, slots=True)
class Replace:
    """Removes a member and adds another incarnation of its node as a learner. One voter at most leaves, so it is as
    safe as `Remove`. Both happen or neither, so the node that joins can simply ask again if a node dies meanwhile."""

    id: str
    member: Member


Change = AddLearner | Demote | Promote | Remove | Replace | Update


class BadChange(ValueError):
    """A change is impossible for the present membership; waiting does not help."""


@dataclass(frozen=True, slots=True)
class Membership:
    """Voters and learners, each sorted by id."""

    voters: tuple[Member, ...] = ()
    learners: tuple[Member, ...] = ()
    voter_ids: tuple[str, ...] = field(init=False, compare=False, repr=False)
    ids: tuple[str, ...] = field(init=False, compare=False, repr=False)  # Voters first.

    def __post_init__(self) -> None:
        object.__setattr__(self, "voter_ids", tuple(member.id for member in self.voters))
        object.__setattr__(self, "ids", self.voter_ids + tuple(member.id for member in self.learners))

    @property
    def members(self) -> tuple[Member, ...]:
        return self.voters + self.learners

    def get(self, member_id: str) -> Member | None:
        return next((member for member in self.members if member.id == member_id), None)

    def is_majority(self, count: int) -> bool:
        return count > len(self.voters) // 2

    def changed(self, change: Change) -> Membership:
        """Return the membership after a change. Raises `BadChange`."""
        match change:
            case AddLearner(member):
                return self._with_learner(member)
            case Promote(member_id):
                learner = next((one for one in self.learners if one.id == member_id), None)
                if learner is None:
                    raise BadChange(f"{member_id} is not a learner")
                learners = tuple(one for one in self.learners if one.id != member_id)
                return Membership(_sorted((*self.voters, learner)), learners)
            case Demote(member_id):
                return self._demoted(member_id)
            case Remove(member_id):
                return self._without(member_id)
            case Replace(member_id, member):
                return self._without(member_id)._with_learner(member)
            case Update(member):
                return self._updated(member)

    def _with_learner(self, member: Member) -> Membership:
        for other in self.members:
            if other.id == member.id:
                raise BadChange(f"{member.id} is a member already")
            if other.name == member.name:
                raise BadChange(f"{other.id} is a member named {member.name}; remove that incarnation first")
        if len(self.ids) >= MEMBERS_MAX:
            raise BadChange(f"there are {MEMBERS_MAX} members already")
        check_member(member)
        return Membership(self.voters, _sorted((*self.learners, member)))

    def _demoted(self, member_id: str) -> Membership:
        voter = next((one for one in self.voters if one.id == member_id), None)
        if voter is None:
            raise BadChange(f"{member_id} is not a voter")
        if len(self.voters) == 1:
            raise BadChange("the last voter cannot become a learner")
        voters = tuple(one for one in self.voters if one.id != member_id)
        return Membership(voters, _sorted((*self.learners, voter)))

    def _without(self, member_id: str) -> Membership:
        if member_id not in self.ids:
            raise BadChange(f"{member_id} is not a member")
        voters = tuple(one for one in self.voters if one.id != member_id)
        if not voters:
            raise BadChange("the last voter cannot be removed")
        return Membership(voters, tuple(one for one in self.learners if one.id != member_id))

    def _updated(self, member: Member) -> Membership:
        check_member(member)
        if member.id not in self.ids:
            raise BadChange(f"{member.id} is not a member")
        if any(other.name == member.name and other.id != member.id for other in self.members):
            raise BadChange(f"another member is named {member.name}")
        put = [tuple(member if one.id == member.id else one for one in group) for group in (self.voters, self.learners)]
        return replace(self, voters=put[0], learners=put[1])


NOBODY: Final = Membership()  # The membership of a node that has not received any entry yet.


def check_member(member: Member) -> None:
    """Refuse a member that could be written but not read back. Raises `BadChange`."""
    if not is_id(member.id):
        raise BadChange(f"{member.id!r} is no id of a member")
    if not 0 <= member.priority <= PRIORITY_MAX:
        raise BadChange(f"a priority lies between 0 and {PRIORITY_MAX}, and {member.priority} does not")
    for text in (member.name, member.address):
        if not 0 < len(text.encode()) <= 255:
            raise BadChange(f"a name or address has 1 to 255 bytes, and {text[:40]!r} has {len(text.encode())}")


def is_id(text: str) -> bool:
    return 0 < len(text) <= ID_BYTES_MAX and text.isascii() and text.isprintable() and " " not in text


def encode_membership(membership: Membership) -> bytes:
    parts = [struct.pack(">BB", len(membership.voters), len(membership.learners))]
    for member in membership.members:
        parts += [pack_text(member.id), pack_text(member.name), pack_text(member.address)]
        parts.append(bytes((member.priority,)))
    return b"".join(parts)


def decode_membership(data: bytes) -> Membership:
    """Raises `BadMessage`."""
    reader = Reader(data)
    membership = read_membership(reader)
    reader.end()
    return membership


def read_membership(reader: Reader) -> Membership:
    voters, learners = reader.u8(), reader.u8()
    members = [_read_member(reader) for _ in range(voters + learners)]
    membership = Membership(tuple(members[:voters]), tuple(members[voters:]))
    if len(set(membership.ids)) != len(members) or len({member.name for member in members}) != len(members):
        raise BadMessage("two members with one id or name")
    if membership.voters != _sorted(membership.voters) or membership.learners != _sorted(membership.learners):
        raise BadMessage("members out of order")
    return membership


def _read_member(reader: Reader) -> Member:
    member = Member(reader.text(), reader.text(), reader.text(), reader.u8())
    try:
        check_member(member)
    except BadChange as error:
        raise BadMessage(str(error)) from error
    return member


def _sorted(members: Iterable[Member]) -> tuple[Member, ...]:
    return tuple(sorted(members, key=lambda member: member.id))
