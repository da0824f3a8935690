"""What leads where, for whoever lists it: the bindings that are stored, and those that go without saying.

Every queue is bound to the default exchange by its own name. Keepers, which nobody is to know of, are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.metadata.model.hidden_queues import is_keeper
from leveret.metadata.model.records import Binding, DestinationKind, QueueSpec

if TYPE_CHECKING:
    from leveret.metadata.model.bindings import Bindings


class Listings:
    """The part of the metadata that only reads."""

    queues: dict[tuple[str, str], QueueSpec]
    bindings: Bindings

    def bindings_from(self, vhost: str, exchange: str) -> list[Binding]:
        """What is bound to an exchange; to the default exchange, every queue by its name."""
        if exchange:
            return self.bindings.from_source(vhost, exchange)
        there = (spec for (where, name), spec in self.queues.items() if where == vhost and not is_keeper(name))
        return [implicit_binding(spec) for spec in there]

    def bindings_to(self, vhost: str, kind: DestinationKind, name: str) -> list[Binding]:
        """What leads to a queue (its implicit binding first) or an exchange."""
        found = self.bindings.to_destination(vhost, kind, name)
        queue = self.queues.get((vhost, name)) if kind == "queue" else None
        return found if queue is None else [implicit_binding(queue), *found]


def implicit_binding(queue: QueueSpec) -> Binding:
    """The binding every queue has to the default exchange."""
    return Binding(queue.vhost, "", "queue", queue.name, queue.name)
