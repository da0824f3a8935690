"""Hands over the queues that this node leads, before it stops or while it is in maintenance.

Each queue goes to a mirror in sync, those of one node spread over the others. Publishes wait meanwhile, and go to the
new master together with the unconfirmed ones; none is lost. A node in maintenance
(`leveret.metadata.model.maintenance_mark`) gives its queues only to nodes that are not.

A node may lead ten thousand queues, and to look at all of them, or to hand them all over, takes tenths of a second. So
they are looked at in rounds. Each call looks at the next few and begins a few hand-overs, but none while as many are
under way as the caller allows. The first call after the end of a round begins another one: a queue may have come to
this node meanwhile, or have a mirror in sync now. So does the first call before a stop: a node in maintenance passes
over queues that it may hand over then.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from leveret.metadata.model.maintenance_mark import out_of_service

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.mirrors.manager import Mirror

LOOKS_AT_ONCE: Final = 512
BEGUN_AT_ONCE: Final = 32
UNDER_WAY_MAX: Final = 256  # Before a stop.


class HandOvers:
    """The hand-overs that one node begins by itself."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._round: list[Mirror] = []  # Queues that this round has not looked at; the next one is last.
        self._leaves = False  # The round is one of `leave`.
        self._under_way: dict[Mirror, str] = {}  # And to which node.
        self._kept = 0  # Queues that this round has looked at, and that could go but are not on their way.
        self._given: dict[str, int] = {}  # How many queues of this round each node was given before a stop.

    def leave(self) -> bool:
        """Before this node stops: hand over the next queues, as far as the rules say. False: nothing is to be waited
        for."""
        mirrors, member_changes = self.broker.mirrors, self.broker.member_changes
        assert member_changes is not None
        away = out_of_service(self.broker.metadata)
        if not self._leaves:
            self._leaves, self._round = True, []  # Maintenance has passed over queues that may go now.
        for mirror in self._next(UNDER_WAY_MAX):
            member, given = mirror.member, self._given
            candidates = _candidates(mirror)
            if _is_under_way(mirror):
                self._kept += 1
            elif candidates:
                chosen = min(candidates, key=lambda name: (name in away, given.get(name, 0)))
                given[chosen] = given.get(chosen, 0) + 1
                if mirrors.hand_over(mirror, chosen):
                    self._under_way[mirror] = chosen
            elif member_changes.rules_of(mirror.spec).on_shutdown_always:
                if member.step_down():
                    mirrors.touch(mirror)
                    self._kept += 1
                else:
                    self._kept += member.may_step_down_soon()
        return self._left > 0

    def stay(self) -> None:
        """There is no more time to hand over queues, or none is left. The node may go on: to leave the cluster may
        fail."""
        self._leaves, self._round = False, []

    def give_away(self, at_once: int) -> int:
        """While this node is in maintenance: hand over the next queues to nodes that are not, so many at a time.
        Returns how many are left that could be handed over, and with them those that were not looked at yet. No
        unsynchronised mirror is promoted here, whatever the rules say: the node does not stop yet."""
        if self._leaves:
            return self._left  # It would pass over queues that may go before a stop.
        mirrors = self.broker.mirrors
        away = out_of_service(self.broker.metadata)
        masters: dict[str, int] | None = None
        for mirror in self._next(at_once):
            candidates = [name for name in _candidates(mirror) if name not in away]
            if not candidates:
                continue
            if _is_under_way(mirror):
                self._kept += 1
                continue
            if masters is None:
                masters = self._masters()
            chosen = min(candidates, key=lambda name: (masters.get(name, 0), name))
            masters[chosen] = masters.get(chosen, 0) + 1
            if mirrors.hand_over(mirror, chosen):
                self._under_way[mirror] = chosen
            else:
                self._kept += 1
        return self._left

    @property
    def is_looking(self) -> bool:
        """Returns whether there are queues that this round has not looked at."""
        return bool(self._round)

    @property
    def _left(self) -> int:
        return len(self._round) + len(self._under_way) + self._kept

    def _next(self, at_once: int) -> Iterator[Mirror]:
        """Yields the next queues that this node leads and that are not on their way, as many as fit into a turn, and
        while fewer than `at_once` are on their way."""
        mirrors, under_way = self.broker.mirrors, self._under_way
        for mirror in [one for one in under_way if not _is_under_way(one)]:
            del under_way[mirror]
            self._kept += _is_led(mirror)  # The hand-over has failed, and is tried again.
        if not self._round:
            self._round = [mirror for mirror in mirrors if mirror.queue is not None]
            self._round.reverse()
            self._kept, self._given = 0, {}
        enough = min(len(under_way) + BEGUN_AT_ONCE, at_once)
        for _ in range(min(LOOKS_AT_ONCE, len(self._round))):
            if len(under_way) >= enough:
                break
            mirror = self._round.pop()
            if mirror in under_way or mirror.queue is None:
                continue
            mirrors.broadcast.catch_up(mirror)
            if _is_led(mirror) and mirror.member.view is not None and mirror.member.majority:
                yield mirror

    def _masters(self) -> dict[str, int]:
        """Returns how many queues each node leads, or is about to."""
        masters = dict(self.broker.loads.masters)
        for to in self._under_way.values():
            masters[to] = masters.get(to, 0) + 1
        return masters


def _is_led(mirror: Mirror) -> bool:
    return mirror.member.master is not None and mirror.queue is not None


def _is_under_way(mirror: Mirror) -> bool:
    """Returns whether the queue is being handed over, or its view is being changed otherwise."""
    member = mirror.member
    if member.master is None or mirror.queue is None:
        return False
    return member.master.handing is not None or member.proposal_age is not None


def _candidates(mirror: Mirror) -> list[str]:
    """Returns the mirrors in sync that could be master."""
    view, links = mirror.member.view, mirror.member.links
    return [] if view is None else [name for name, _ in view.in_sync if name in links]
