"""The index of all bindings, by source and by destination.

Bindings of one exchange to one destination are a *group*. Very many bindings are few groups with many routing keys, or
many groups with one; so a group stores its keys and nothing else for each of them, and a lone key without a dictionary.
Both directions of the index lead to the same groups. Therefore the deletion of an exchange or a queue removes groups,
however many bindings are in them, and a snapshot is read a group at a time. A `Binding` is made when somebody asks.

Dictionaries serve as ordered sets (a `set` would iterate in an order that differs from process to process, and with it
the behaviour of nodes).

A copy for a snapshot shares the groups. A group that has to change while it may be shared is replaced by a copy of
itself: groups have the number of the copy that they were made after.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TypeAlias

from leveret.metadata.model.records import NO_ARGUMENTS, Binding, DestinationKind
from leveret.protocol.tables import Table

End: TypeAlias = tuple[str, DestinationKind, str]  # Vhost, kind and name of a destination.


class BindingGroup:
    """The bindings of one exchange to one queue or exchange. Those without arguments come first."""

    __slots__ = ("_keys", "_tables", "destination", "destination_kind", "generation", "source", "vhost")

    def __init__(
        self, vhost: str, source: str, destination_kind: DestinationKind, destination: str, generation: int = 0
    ) -> None:
        self.vhost = vhost
        self.source = source
        self.destination_kind: DestinationKind = destination_kind
        self.destination = destination
        self.generation = generation  # The number of copies of the index that were made before this group.
        self._keys: dict[str, None] | str | None = None  # Of bindings without arguments.
        self._tables: dict[tuple[str, bytes], Table] | None = None  # Of the others: by key and digest.

    def __len__(self) -> int:
        keys = self._keys
        count = 0 if keys is None else 1 if isinstance(keys, str) else len(keys)
        return count if self._tables is None else count + len(self._tables)

    def __iter__(self) -> Iterator[Binding]:
        """Yield the bindings that are there now, even if the group changes meanwhile."""
        ends = (self.vhost, self.source, self.destination_kind, self.destination)
        keys, rows = self.plain_keys(), self.with_arguments()
        for key in keys:
            yield Binding(*ends, key, NO_ARGUMENTS)
        for key, arguments in rows:
            yield Binding(*ends, key, arguments)

    def ordered(self) -> Iterator[Binding]:
        """Yield the bindings that are there now, in the order of their own fields."""
        ends = (self.vhost, self.source, self.destination_kind, self.destination)
        if self._tables is None:
            for key in sorted(self.plain_keys()):
                yield Binding(*ends, key, NO_ARGUMENTS)
        else:
            yield from sorted(self, key=Binding.order)

    @property
    def end(self) -> End:
        return (self.vhost, self.destination_kind, self.destination)

    def plain_keys(self) -> Sequence[str]:
        """Return the routing keys of bindings without arguments, as of now."""
        keys = self._keys
        return () if keys is None else (keys,) if isinstance(keys, str) else list(keys)

    def with_arguments(self) -> Sequence[tuple[str, Table]]:
        """Return routing key and arguments of the other bindings, as of now."""
        return () if self._tables is None else [(key, table) for (key, _), table in self._tables.items()]

    def holds(self, key: str, digest: bytes) -> bool:
        if digest:
            return self._tables is not None and (key, digest) in self._tables
        keys = self._keys
        return key == keys if isinstance(keys, str) else keys is not None and key in keys

    def is_like(self, other: BindingGroup) -> bool:
        """Return whether another group between the same ends has the same bindings."""
        mine, others = self._keys, other._keys
        if isinstance(mine, dict) and isinstance(others, dict):
            is_same = mine == others
        else:
            is_same = list(self.plain_keys()) == list(other.plain_keys())
        return is_same and (self._tables or {}).keys() == (other._tables or {}).keys()

    def add_keys(self, more: list[str]) -> int:
        """Add bindings without arguments. Return how many of them are new."""
        before = len(self)
        keys = self._keys
        if keys is None and len(more) == 1:
            self._keys = more[0]
            return 1
        if not isinstance(keys, dict):
            keys = self._keys = {} if keys is None else {keys: None}
        keys.update(dict.fromkeys(more))
        return len(self) - before

    def add(self, key: str, arguments: Table, digest: bytes) -> None:
        """Add a binding that is not there yet."""
        if digest:
            if self._tables is None:
                self._tables = {}
            self._tables[key, digest] = arguments
        elif self._keys is None:
            self._keys = key
        elif isinstance(self._keys, str):
            self._keys = {self._keys: None, key: None}
        else:
            self._keys[key] = None

    def remove(self, key: str, digest: bytes) -> None:
        """Remove a binding that is there."""
        if digest:
            assert self._tables is not None
            del self._tables[key, digest]
        elif isinstance(self._keys, str):
            assert self._keys == key
            self._keys = None
        else:
            assert self._keys is not None
            del self._keys[key]

    def copy(self, generation: int) -> BindingGroup:
        copy = BindingGroup(self.vhost, self.source, self.destination_kind, self.destination, generation)
        copy._keys = self._keys.copy() if isinstance(self._keys, dict) else self._keys
        copy._tables = None if self._tables is None else self._tables.copy()
        return copy


class Bindings:
    """An index of bindings; adding and removing take constant time."""

    __slots__ = ("_by_destination", "_by_source", "_copies", "_counts")

    def __init__(self) -> None:
        self._by_source: dict[tuple[str, str], dict[End, BindingGroup]] = {}
        # A dictionary by source only if there are several: most queues of a big cluster are bound to one exchange.
        self._by_destination: dict[End, BindingGroup | dict[str, BindingGroup]] = {}
        self._counts: dict[tuple[str, str], int] = {}  # By source: its bindings, of all groups.
        self._copies = 0

    def copy(self) -> Bindings:
        """Return a copy that does not change with this one."""
        self._copies += 1
        copy = Bindings()
        copy._by_source = {key: found.copy() for key, found in self._by_source.items()}
        copy._by_destination = {
            key: found if isinstance(found, BindingGroup) else found.copy()
            for key, found in self._by_destination.items()
        }
        copy._counts = self._counts.copy()
        copy._copies = self._copies  # The copy shares all groups, too.
        return copy

    def __len__(self) -> int:
        return sum(self._counts.values())

    def __iter__(self) -> Iterator[Binding]:
        for group in self.groups():
            yield from group

    def __contains__(self, binding: Binding) -> bool:
        group = self.between(binding.vhost, binding.source, binding.destination_kind, binding.destination)
        return group is not None and group.holds(binding.key, binding.digest)

    def groups(self, vhost: str | None = None) -> list[BindingGroup]:
        """Return all groups, or those of a vhost: by source, and within it by the first binding of each destination."""
        return [
            group
            for (where, _), found in self._by_source.items()
            if vhost is None or where == vhost
            for group in found.values()
        ]

    def between(self, vhost: str, source: str, kind: DestinationKind, destination: str) -> BindingGroup | None:
        """Return the bindings of an exchange to one destination."""
        found = self._by_source.get((vhost, source))
        return None if found is None else found.get((vhost, kind, destination))

    def add(self, binding: Binding) -> None:
        """Add a binding that is not there yet."""
        vhost, kind = binding.vhost, binding.destination_kind
        group = self._changeable(vhost, binding.source, kind, binding.destination)
        group.add(binding.key, binding.arguments, binding.digest)
        self._counts[vhost, binding.source] = self._counts.get((vhost, binding.source), 0) + 1

    def add_keys(self, vhost: str, source: str, kind: DestinationKind, destination: str, keys: list[str]) -> None:
        """Add bindings without arguments, for each of these routing keys."""
        added = self._changeable(vhost, source, kind, destination).add_keys(keys)
        self._counts[vhost, source] = self._counts.get((vhost, source), 0) + added

    def remove(self, binding: Binding) -> bool:
        """Remove a binding. Return whether it was the last one of its source."""
        group = self._changeable(binding.vhost, binding.source, binding.destination_kind, binding.destination)
        group.remove(binding.key, binding.digest)
        self._counts[binding.vhost, binding.source] -= 1
        return not len(group) and self._drop(group)

    def remove_group(self, group: BindingGroup) -> bool:
        """Remove all bindings between two ends. Return whether they were the last ones of their source."""
        self._counts[group.vhost, group.source] -= len(group)
        return self._drop(group)

    def _drop(self, group: BindingGroup) -> bool:
        start, end = (group.vhost, group.source), group.end
        there = self._by_destination[end]
        if isinstance(there, BindingGroup):
            del self._by_destination[end]
        else:
            del there[group.source]
            if not there:
                del self._by_destination[end]
        from_source = self._by_source[start]
        del from_source[end]
        if from_source:
            return False
        del self._by_source[start], self._counts[start]
        return True

    def _changeable(self, vhost: str, source: str, kind: DestinationKind, destination: str) -> BindingGroup:
        """Return the group between two ends, which no copy of this index shares."""
        end: End = (vhost, kind, destination)
        from_source = self._by_source.setdefault((vhost, source), {})
        group = from_source.get(end)
        if group is not None:
            if group.generation == self._copies:
                return group
            group = group.copy(self._copies)
        else:
            group = BindingGroup(vhost, source, kind, destination, self._copies)
        there = self._by_destination.get(end)
        if isinstance(there, dict):
            there[source] = group
        elif there is None or there.source == source:
            self._by_destination[end] = group
        else:
            self._by_destination[end] = {there.source: there, source: group}
        from_source[end] = group
        return group

    def is_source(self, vhost: str, exchange: str) -> bool:
        """Return whether anything is bound to the exchange."""
        return (vhost, exchange) in self._by_source

    def groups_from(self, vhost: str, exchange: str) -> list[BindingGroup]:
        """Return the bindings of an exchange."""
        return list(self._by_source.get((vhost, exchange), {}).values())

    def groups_to(self, vhost: str, kind: DestinationKind, name: str) -> list[BindingGroup]:
        """Return the bindings to a queue or an exchange, by the names of their sources."""
        there = self._by_destination.get((vhost, kind, name))
        if there is None:
            return []
        # Not in the order of arrival: a snapshot keeps that per source only, so a node that started from one has
        # another.
        return [there] if isinstance(there, BindingGroup) else [there[source] for source in sorted(there)]

    def from_source(self, vhost: str, exchange: str) -> Iterator[Binding]:
        """Yield the bindings of an exchange, of one destination after the other."""
        for group in self.groups_from(vhost, exchange):
            yield from group

    def count_from(self, vhost: str, exchange: str) -> int:
        """Return the number of bindings of an exchange."""
        return self._counts.get((vhost, exchange), 0)

    def to_destination(self, vhost: str, kind: DestinationKind, name: str) -> Iterator[Binding]:
        """Yield the bindings to a queue or an exchange, in the order of the bindings' own fields."""
        for group in self.groups_to(vhost, kind, name):
            yield from group.ordered()

    def in_vhost(self, vhost: str) -> Iterator[Binding]:
        """Yield all bindings of a vhost."""
        for group in self.groups(vhost):
            yield from group

    def page(self, vhost: str, start: int, count: int) -> list[Binding]:
        """Return so many bindings of a vhost, from that position on."""
        found: list[Binding] = []
        for group in self.groups(vhost):
            if start < len(group):
                found += islice(group, start, start + count - len(found))
            start = max(start - len(group), 0)
            if len(found) >= count:
                break
        return found
