"""How many queues each node leads, and of how many it has a copy: kept, not counted, since every declaration asks."""

from __future__ import annotations

from leveret.metadata.model.records import QueueSpec


class Loads:
    __slots__ = ("_known", "copies", "masters")

    def __init__(self) -> None:
        self.masters: dict[str, int] = {}
        self.copies: dict[str, int] = {}  # Masters among them.
        self._known: dict[int, QueueSpec] = {}

    def put(self, spec: QueueSpec) -> None:
        """The queue is new, or is elsewhere now."""
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
