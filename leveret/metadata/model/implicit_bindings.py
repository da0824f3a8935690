"""Lists of bindings with the implicit ones, which are not stored.

Every queue is bound to the default exchange by its own name. The hidden queues of delayed exchanges are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from leveret.metadata.model.hidden_queues import is_hidden_queue
from leveret.metadata.model.records import Binding, DestinationKind, QueueSpec

if TYPE_CHECKING:
    from leveret.metadata.model.bindings import Bindings


class ImplicitBindings:
    """Lists bindings for `store.Metadata`."""

    queues: dict[tuple[str, str], QueueSpec]
    bindings: Bindings

    def bindings_from(self, vhost: str, exchange: str) -> Iterator[Binding]:
        """Return the bindings of an exchange; of the default exchange, one for each queue."""
        if exchange:
            return self.bindings.from_source(vhost, exchange)
        there = [spec for (where, name), spec in self.queues.items() if where == vhost and not is_hidden_queue(name)]
        return map(implicit_binding, there)

    def bindings_to(self, vhost: str, kind: DestinationKind, name: str) -> Iterator[Binding]:
        """Return the bindings to a queue (its implicit one first) or an exchange."""
        found = self.bindings.to_destination(vhost, kind, name)
        queue = self.queues.get((vhost, name)) if kind == "queue" else None
        return found if queue is None else chain([implicit_binding(queue)], found)

    def bindings_between(self, vhost: str, source: str, kind: DestinationKind, name: str) -> Iterator[Binding]:
        """Return the bindings of one exchange to one destination, in the order of the bindings' own fields."""
        if source:
            group = self.bindings.between(vhost, source, kind, name)
            return iter(()) if group is None else group.ordered()
        queue = self.queues.get((vhost, name)) if kind == "queue" else None
        return iter(() if queue is None else (implicit_binding(queue),))


def implicit_binding(queue: QueueSpec) -> Binding:
    """Return the binding that every queue has to the default exchange."""
    return Binding(queue.vhost, "", "queue", queue.name, queue.name)
