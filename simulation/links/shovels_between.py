"""Shovels from one cluster to another, while everything fails.

    python -m simulation --two-clusters --shovels --seed 7 --nodes 2 [--steps 40] [--trace] [--count 20]

Publishers fill the sources, and nobody takes from the last queues:

    push     near "push" ─▶ far "pushed"      run by near: it consumes within the process and publishes over the line
    pull     far "pull" ─▶ near "pulled"      run by near: it consumes over the line
    there    near "trip" ─▶ far "trip"        run by near; then
    back     far "trip" ─▶ near "tripped"     run by far: what it brings has made the way there and back

What must hold, beside one worker (see `linked`):

    no loss      in the end, what a publisher was told to be safe is in the last queue
    no double    in the end, nothing is in a last queue twice
    no loop      a message has passed each shovel once, in the order of the chain, by its header `x-shovelled`
    at work      in quiet times each shovel is run by one node, and the sources are empty
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from leveret.metadata.model.commands import DeclareQueue, SetParameter, SetPolicy
from leveret.metadata.shovel.commands import PauseWork
from leveret.metadata.shovel.records import SHOVEL, WorkKey
from leveret.protocol.frames import HEADER_AT
from leveret.protocol.properties import decode_content
from leveret.shovel.rewriting import SHOVELLED
from simulation.amqp.contents import number_of
from simulation.links.linked import FAR, NEAR, Place, Source
from simulation.links.two_clusters import TwoClusters
from simulation.world import START_S

if TYPE_CHECKING:
    import random

    from leveret.base.json_values import Json


class Way(NamedTuple):
    """A shovel: who runs it, and between which queues."""

    name: str
    run_by: str
    source: Place
    target: Place

    @property
    def key(self) -> WorkKey:
        return WorkKey(SHOVEL, "/", self.name)


class Route(NamedTuple):
    """A source that publishers fill, the last queue, and the shovels in between, the last one first."""

    source: Source
    last: Place
    by: tuple[str, ...]


WAYS: Final = (
    Way("push", NEAR, Place(NEAR, "push"), Place(FAR, "pushed")),
    Way("pull", NEAR, Place(FAR, "pull"), Place(NEAR, "pulled")),
    Way("there", NEAR, Place(NEAR, "trip"), Place(FAR, "trip")),
    Way("back", FAR, Place(FAR, "trip"), Place(NEAR, "tripped")),
)
ROUTES: Final = (
    Route(Source(NEAR, "push", True), Place(FAR, "pushed"), ("push",)),
    Route(Source(FAR, "pull", True), Place(NEAR, "pulled"), ("pull",)),
    Route(Source(NEAR, "trip", True), Place(NEAR, "tripped"), ("back", "there")),
)


class ShovelsBetween(TwoClusters):
    """A run with shovels from one cluster to the other."""

    def sources(self) -> Collection[Source]:
        return [route.source for route in ROUTES]

    def works(self) -> list[tuple[str, WorkKey]]:
        return [(way.run_by, way.key) for way in WAYS]

    def set_up(self) -> None:
        for side, machines in self.sides.items():
            if self.is_mirrored:
                self.order(side, SetPolicy("/", "moved", "^(pu|tr)", "queues", 9, {"ha-mode": "all"}))
            queues = {place.name for way in WAYS for place in (way.source, way.target) if place.side == side}
            for number, queue in enumerate(sorted(queues)):
                self.order(side, DeclareQueue("/", queue, node=machines[number % len(machines)].node_name))
            self.run_for(1.0)
        for way in WAYS:
            self.order(way.run_by, self._parameter(way, 5))
        self.run_for(1.0)

    def _parameter(self, way: Way, prefetch: int) -> SetParameter:
        uris: dict[str, Json] = {NEAR: self.uris_of(NEAR), FAR: self.uris_of(FAR), way.run_by: "amqp://"}
        value: Json = {
            "src-uri": uris[way.source.side], "src-queue": way.source.name, "src-predeclared": True,
            "dest-uri": uris[way.target.side], "dest-queue": way.target.name, "dest-predeclared": True,
            "dest-add-forward-headers": True, "reconnect-delay": 0.3, "src-prefetch-count": prefetch,
        }  # fmt: skip
        return SetParameter(SHOVEL, "/", way.name, value)

    def work_fault(self, name: str, seconds: float, rng: random.Random) -> None:
        way = rng.choice(WAYS)
        if name == "change_parameter":
            self.order(way.run_by, self._parameter(way, rng.choice((1, 7, 50))), rng)
        elif name == "pause_shovel":
            self.order(way.run_by, PauseWork(*way.key, True), rng)
            self.scheduler.after(seconds, self.order, way.run_by, PauseWork(*way.key, False), rng)
        else:
            super().work_fault(name, seconds, rng)

    # -- What must hold ------------------------------------------------------------------------------------------

    def finish(self) -> None:
        while self._resume():
            self.run_for(1.0)
        self.run_for(2.0)
        self.await_rest()
        self.look(START_S)
        for route in ROUTES:
            read = self.read(route.last, START_S)
            if read is None:
                self.fail_now(f"{route.last} could not be read")
            self.compare(route.last, list(map(number_of, read or ())), [route.source])

    def _resume(self) -> bool:
        """Resume what is paused. True: something was."""
        found = False
        for way in WAYS:
            known = self.assignment(way.run_by, way.key)
            if known is not None and known.paused:
                self.order(way.run_by, PauseWork(*way.key, False))
                found = True
        return found

    def unrest(self) -> str:
        return super().unrest() or next((left for way in WAYS if (left := self.left_in(way.source))), "")

    def look(self, seconds: float) -> None:
        """Compare the shovels that messages have passed with those that lead to their queue. Done all the time, since
        what circles never comes to rest."""
        for route in ROUTES:
            first = Place(route.source.side, route.source.name)
            for left, place in enumerate([*map(_target_of, route.by), first]):
                expected = list(route.by[left:])
                for one in self.read(place, seconds) or ():
                    names = _passed(one)
                    if names != expected:
                        self.fail_now(f"message {number_of(one)} of {first} came to {place} through {names}")


def _target_of(name: str) -> Place:
    return next(way.target for way in WAYS if way.name == name)


def _passed(one: bytes) -> list[str]:
    """Return the shovels that a message has passed, the last one first."""
    headers: dict[str, Any] = decode_content(one, HEADER_AT).headers or {}
    if SHOVELLED not in headers:
        return []
    return [table.value["shovel-name"].value for table in headers[SHOVELLED].value]
