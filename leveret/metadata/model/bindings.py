"""The index of all bindings, by source and by destination.

A binding is one object, in two dictionaries that serve as ordered sets (a `set` would iterate in an order that differs
from process to process, and with it the behaviour of nodes). Nothing else is kept per binding, and it shares the
strings of its exchange and its queue, so that a million bindings with distinct keys take some 280 bytes each. Most
queues of a big cluster have a single binding; it is stored for its destination without a dictionary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from leveret.metadata.model.records import Binding, DestinationKind

_Set: TypeAlias = dict[Binding, None]


class Bindings:
    """An index of bindings; adding and removing take constant time."""

    __slots__ = ("_by_destination", "_by_source", "_count")

    def __init__(self) -> None:
        self._by_source: dict[tuple[str, str], _Set] = {}
        self._by_destination: dict[tuple[str, str, str], Binding | _Set] = {}
        self._count = 0

    def copy(self) -> Bindings:
        """Return a copy that does not change with this one."""
        copy = Bindings()
        copy._by_source = {key: found.copy() for key, found in self._by_source.items()}
        copy._by_destination = {
            key: found if isinstance(found, Binding) else found.copy() for key, found in self._by_destination.items()
        }
        copy._count = self._count
        return copy

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Binding]:
        for found in self._by_source.values():
            yield from found

    def __contains__(self, binding: Binding) -> bool:
        return binding in self._by_source.get((binding.vhost, binding.source), ())

    def groups(self) -> Iterator[tuple[tuple[str, str], Iterable[Binding]]]:
        """Yield the bindings of each source, by vhost and exchange."""
        yield from self._by_source.items()

    def add(self, binding: Binding) -> None:
        """Add a binding that is not there yet."""
        self._by_source.setdefault((binding.vhost, binding.source), {})[binding] = None
        end = (binding.vhost, binding.destination_kind, binding.destination)
        there = self._by_destination.get(end)
        if there is None:
            self._by_destination[end] = binding
        elif isinstance(there, Binding):
            self._by_destination[end] = {there: None, binding: None}
        else:
            there[binding] = None
        self._count += 1

    def remove(self, binding: Binding) -> bool:
        """Remove a binding. Return whether it was the last one of its source."""
        start = (binding.vhost, binding.source)
        from_source = self._by_source[start]
        del from_source[binding]
        end = (binding.vhost, binding.destination_kind, binding.destination)
        there = self._by_destination[end]
        if isinstance(there, Binding):
            del self._by_destination[end]
        else:
            del there[binding]
            if not there:
                del self._by_destination[end]
        self._count -= 1
        if from_source:
            return False
        del self._by_source[start]
        return True

    def is_source(self, vhost: str, exchange: str) -> bool:
        """Return whether anything is bound to the exchange."""
        return (vhost, exchange) in self._by_source

    def from_source(self, vhost: str, exchange: str) -> list[Binding]:
        """Return the bindings of an exchange, in the order in which they were made."""
        return list(self._by_source.get((vhost, exchange), ()))

    def count_from(self, vhost: str, exchange: str) -> int:
        """Return the number of bindings of an exchange."""
        return len(self._by_source.get((vhost, exchange), ()))

    def to_destination(self, vhost: str, kind: DestinationKind, name: str) -> list[Binding]:
        """Return the bindings to a queue or an exchange, in the order of the bindings' own fields."""
        there = self._by_destination.get((vhost, kind, name))
        if there is None:
            return []
        if isinstance(there, Binding):
            return [there]
        # Not in the order of arrival: a snapshot keeps that per source only, so a node that started from one has
        # another.
        return sorted(there, key=Binding.order)

    def in_vhost(self, vhost: str) -> list[Binding]:
        """Return all bindings of a vhost."""
        return [each for (where, _), found in self._by_source.items() if where == vhost for each in found]
