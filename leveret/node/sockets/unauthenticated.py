"""Connections that have not logged in yet, and which of them is closed when there are too many.

Such a connection costs a descriptor and some kilobytes, and anybody can open thousands. If new ones were refused once
there are too many, then an attacker with that many silent ones would lock everybody else out, for as long as a
handshake may take. So a new one is accepted, and another one is closed: *the oldest one of the address that has most of
them*.

Therefore an address that opens thousands takes only its own places. Behind a proxy or a load balancer all clients have
one address: there is no fixed share that they could exceed together while nobody else wants the places, and if an
attacker comes through the same proxy, the oldest is closed: a client that logs in takes milliseconds, a silent
connection stays. Of IPv6 addresses only the first half counts, for a single machine has as many of the second half as
it likes.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv6Address, ip_address
from typing import Final, Generic, TypeVar

TELL_S: Final = 10.0  # Seconds between two lines in the log.

T = TypeVar("T")


def share_of(host: str) -> str:
    """Returns the address, or the IPv6 network, by which connections are counted."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:  # Not an IP socket.
        return host
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return f"{IPv6Address(int(address) >> 64 << 64)}/64"
    return host


class Unauthenticated(Generic[T]):
    """Connections that have not logged in, by their addresses, for each in the order of arrival. Every operation takes
    constant time."""

    def __init__(self) -> None:
        self._share: dict[T, str] = {}
        self._of: dict[str, dict[T, None]] = {}
        self._with: dict[int, dict[str, None]] = {}  # The addresses by how many connections they have.
        self._most = 0
        self.evicted = 0
        self._told_s = 0.0
        self._told = 0

    def __len__(self) -> int:
        return len(self._share)

    def __contains__(self, one: T) -> bool:
        return one in self._share

    def __iter__(self) -> Iterator[T]:
        return iter(self._share)

    def add(self, one: T, host: str) -> None:
        assert one not in self._share
        share = share_of(host)
        self._share[one] = share
        of = self._of.setdefault(share, {})
        of[one] = None
        self._move(share, len(of) - 1, len(of))
        self._most = max(self._most, len(of))

    def discard(self, one: T) -> None:
        """Removes a connection that has logged in, or ended."""
        share = self._share.pop(one, None)
        if share is None:
            return
        of = self._of[share]
        del of[one]
        self._move(share, len(of) + 1, len(of))
        if not of:
            del self._of[share]
        if self._most not in self._with:
            self._most -= 1

    def next_to_go(self) -> T | None:
        """Returns the oldest one of the address that has most; of several such addresses, the one that has had so many
        for longest. None if there are no connections."""
        if not self._share:
            return None
        return next(iter(self._of[next(iter(self._with[self._most]))]))

    def evict(self) -> T | None:
        """Removes the next one and returns it, for the caller to close it."""
        one = self.next_to_go()
        if one is not None:
            self.discard(one)
            self.evicted += 1
        return one

    def to_tell(self, now_s: float) -> int:
        """Returns how many were evicted since the last line in the log; 0 if that was less than `TELL_S` ago. A line
        for each of them would let an attacker fill the log."""
        count = self.evicted - self._told
        if not count or (self._told and now_s - self._told_s < TELL_S):
            return 0
        self._told_s, self._told = now_s, self.evicted
        return count

    def _move(self, share: str, before: int, after: int) -> None:
        if before:
            del self._with[before][share]
            if not self._with[before]:
                del self._with[before]
        if after:
            self._with.setdefault(after, {})[share] = None
