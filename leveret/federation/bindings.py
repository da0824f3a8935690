"""The bindings that an exchange has here, as they should be upstream.

Each distinct key and arguments is one binding upstream, however many queues are bound here like that. It names in the
argument `x-bound-from` the cluster, vhost and exchange for which it was made, and how many further links it may be
passed on by: a binding must reach exactly those exchanges from which messages can come. Messages count their hops from
the other end, so a binding counts down from the strictest `max-hops` on its way:

    hops of the next link = min(hops of this link - 1, max-hops of the next link)

A binding that has no hops left, or was made for the cluster and vhost that it would be passed on to, goes no further.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.protocol.received_from import CLUSTER, VHOST, was_at
from leveret.protocol.tables import Field, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from leveret.metadata.model.records import Binding

BOUND_FROM: Final = "x-bound-from"
HOPS: Final = "hops"
SUFFIXES: Final = ("A", "B", "C")  # Of the internal exchanges that a link makes in turn.
_INTEGERS: Final = frozenset("bBsuIil")


def queue_name(there: str, there_vhost: str, here: str, here_vhost: str, cluster: str) -> str:
    """Return the name of the queue that a link makes upstream. `cluster` is the name of this one."""
    more = f":{here_vhost}:{here}" if here_vhost != there_vhost else f":{here}" if here != there else ""
    return f"federation: {there} -> {cluster}{more}"


def following(present: Sequence[str]) -> str:
    """Return the suffix of the next internal exchange, where those with these are: none of them, if possible.

    Of two that are free, the one that was used longer ago: suffixes follow each other in a circle.
    """
    before = (SUFFIXES[-1], *SUFFIXES)
    free = [each for each, last in zip(SUFFIXES, before, strict=False) if each not in present and last in present]
    return free[0] if free else SUFFIXES[1]


class Site(NamedTuple):
    """The two ends of a link, as its bindings name them."""

    cluster: str
    vhost: str
    exchange: str
    upstream_cluster: str | None  # None: it does not tell its name.
    upstream_vhost: str


class Change(NamedTuple):
    """A binding to be made or removed upstream."""

    key: str
    arguments: Table
    is_made: bool


class UpstreamBindings:
    """The bindings that should be upstream, and those that are there or under way."""

    def __init__(self, site: Site, max_hops: int, suffix: str) -> None:
        self.site = site
        self.max_hops = max_hops
        self.suffix = suffix
        self.counts: dict[tuple[str, bytes], int] = {}  # By key and arguments: how many are bound here like that.
        self.wanted: dict[tuple[str, bytes], Table] = {}  # With their arguments here.
        self.made: dict[tuple[str, bytes], Table] = {}  # With their arguments there.
        self.changed: dict[tuple[str, bytes], None] = {}

    def add(self, bindings: Iterable[Binding]) -> None:
        """Something was bound to the exchange here."""
        for one in bindings:
            key = (one.key, one.digest)
            self.counts[key] = self.counts.get(key, 0) + 1
            if self.counts[key] == 1:
                self.wanted[key] = one.arguments
                self.changed[key] = None

    def remove(self, binding: Binding) -> None:
        """Something was unbound from the exchange here."""
        key = (binding.key, binding.digest)
        count = self.counts.get(key, 0)
        if count > 1:
            self.counts[key] = count - 1
        elif count:
            del self.counts[key], self.wanted[key]
            self.changed[key] = None

    def take_change(self) -> Change | None:
        """Return the next change to be made upstream, once; None: there is none."""
        while self.changed:
            key = next(iter(self.changed))
            del self.changed[key]
            wanted, made = self.wanted.get(key), self.made.get(key)
            if wanted is not None and made is None:
                arguments = self.arguments_there(wanted)
                if arguments is not None:
                    self.made[key] = arguments
                    return Change(key[0], arguments, True)
            elif wanted is None and made is not None:
                del self.made[key]
                return Change(key[0], made, False)
        return None

    def arguments_there(self, arguments: Table) -> Table | None:
        """Return the arguments that a binding has upstream; None: it is not passed on."""
        site, hops = self.site, self.max_hops
        before = arguments.get(BOUND_FROM)
        earlier: list[Field] = [] if before is None or before.kind != "A" else before.value
        if earlier:
            if was_at(earlier, site.upstream_cluster, site.upstream_vhost):
                return None
            hops = min(_hops(earlier[0]) - 1, hops)
        if hops <= 0:
            return None
        entry: Table = {
            CLUSTER: Field("S", site.cluster),
            VHOST: Field("S", site.vhost),
            "exchange": Field("S", f"{site.vhost}:{site.exchange} {self.suffix}"),
            HOPS: Field("s", hops),
        }
        return {**arguments, BOUND_FROM: Field("A", [Field("F", entry), *earlier])}


def _hops(entry: Field) -> int:
    """Return how many further links a binding may be passed on by, as the last one noted; 0 if it did not."""
    hops = entry.value.get(HOPS) if entry.kind == "F" else None
    return hops.value if hops is not None and hops.kind in _INTEGERS else 0
