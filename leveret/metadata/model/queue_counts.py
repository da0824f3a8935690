"""The number of masters and of copies on each node, kept up to date because every queue.declare needs them."""

from __future__ import annotations

from leveret.metadata.model.records import QueueSpec


class QueueCounts:
    """Counts the queues of each node."""

    __slots__ = ("_known", "copies", "masters")

    def __init__(self) -> None:
        self.masters: dict[str, int] = {}
        self.copies: dict[str, int] = {}  # Masters included.
        self._known: dict[int, QueueSpec] = {}

    def put(self, spec: QueueSpec) -> None:
        """Count a queue that is new or has moved."""
        self.drop(spec.id)
        self._known[spec.id] = spec
        self._add(spec, 1)

    def drop(self, number: int) -> None:
        known = self._known.pop(number, None)
        if known is not None:
            self._add(known, -1)

    def _add(self, spec: QueueSpec, sign: int) -> None:
        _count(self.masters, spec.node, sign)
        for name in (spec.node,) if spec.view is None else spec.view.ring:
            _count(self.copies, name, sign)


def _count(counts: dict[str, int], name: str, sign: int) -> None:
    counts[name] = counts.get(name, 0) + sign
    if not counts[name]:
        del counts[name]
