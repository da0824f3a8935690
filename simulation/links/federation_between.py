"""Federation links between two clusters, in both directions, while everything fails.

    python -m simulation --two-clusters --federation --seed 7 --nodes 2 [--steps 40] [--trace] [--count 20]

**Exchanges.** Publishers publish to exchanges, and at each place that has a link there is a queue from which nobody
takes, bound to everything:

    news     far ─▶ near                      another queue is bound and unbound by single keys
    ring     near ─▶ far ─▶ near …            each is the other's upstream, with two hops: nothing may come back
    chain    near ─▶ far ─▶ near, vhost "on"  with two hops: everything comes to the end
    stub     near ─▶ far ─▶ near, vhost "on"  with one hop: what was published near stays far

**Queues.** Consumers come and go on both sides, and keep what they get without acknowledging it, so that all of it is
in the queue again when they leave:

    work     far ─▶ near
    both     near ─▶ far, far ─▶ near         messages go where the consumers are

Beside the faults of all such runs, bindings and consumers come and go, links end and are made again, and attempts to
begin anew are cut short.

What must hold, beside one worker (see `linked`):

    no loss      in the end, what a publisher was told to be safe is in every queue that it should come to: from the
                 moment at which the links ran for the first time, whatever happens to them later
    no double    in the end, nothing is in a queue twice: of queues that are upstream of each other, when all of it has
                 gone to the one side, and then to the other (see `_finish_queue`)
    no loop      at all times, the header `x-received-from` of a message names the clusters on its way, and no others;
                 a message of a federated queue has come no more often than consumers did
    no more      in the end, bindings upstream are those that are wanted, and each link has one internal exchange
    at work      in quiet times each link is run by one node, and its queue upstream is empty; a consumer gets what is
                 upstream, and without one it stays there
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from leveret.broker.session.wanted import ConsumerWanted
from leveret.federation.bindings import SUFFIXES, queue_name
from leveret.federation.headers import VISIT_COUNT
from leveret.metadata.federation.links import link_key
from leveret.metadata.model.commands import (
    AddVhost,
    Bind,
    ClearPolicy,
    DeclareExchange,
    DeclareQueue,
    SetGlobalParameter,
    SetParameter,
    SetPolicy,
    Unbind,
)
from leveret.metadata.shovel.commands import RestartWork
from leveret.node.federation.exchange_worker import CHECK_S, PURPOSE
from leveret.protocol.frames import HEADER_AT
from leveret.protocol.properties import decode_content
from leveret.protocol.received_from import (
    CLUSTER,
    DOWNSTREAM_NAME,
    DOWNSTREAM_VHOST,
    MAX_HOPS_ARGUMENT,
    RECEIVED_FROM,
    UPSTREAM_TYPE,
    VHOST,
)
from leveret.protocol.tables import Field, Table
from simulation.amqp.contents import number_of
from simulation.links.linked import FAR, KEYS, NEAR, QUIET_S, Insider, Place, Source
from simulation.links.two_clusters import TwoClusters
from simulation.world import START_S

if TYPE_CHECKING:
    import random

    from leveret.base.json_values import Json
    from leveret.broker.session.message import Delivery
    from leveret.metadata.shovel.records import WorkKey
    from leveret.node.node import Node
    from simulation.core.machine import Machine
    from simulation.plan import Plan

ON: Final = "on"
UPSTREAM: Final = "federation-upstream"
ROOM: Final = 1_000
STILL_S: Final = 5.0  # In which nothing may move, if nobody consumes.
SIDE_QUEUE: Final = "by key"
Hops = tuple[tuple[str, str], ...]  # Cluster and vhost of each link, the last one first.


class Federated(NamedTuple):
    """An exchange or a queue that has a link: which, where it is, and where its upstream is."""

    kind: str
    name: str
    here: Place
    there: Place
    max_hops: int = 1

    @property
    def upstream(self) -> str:
        return f"{self.there.side}{self.max_hops}"

    @property
    def key(self) -> WorkKey:
        return link_key(self.here.vhost, self.kind, self.name, self.upstream, self.name)

    @property
    def link_queue(self) -> Place:
        """The queue that the link of an exchange makes upstream. Clusters are called as they are here."""
        name = queue_name(self.name, self.there.vhost, self.name, self.here.vhost, self.here.side)
        return Place(self.there.side, name, self.there.vhost)


def _exchange(name: str, here: str, there: str, max_hops: int, vhost: str = "/") -> Federated:
    return Federated("exchange", name, Place(here, name, vhost), Place(there, name), max_hops)


NEWS: Final = _exchange("news", NEAR, FAR, 1)
EXCHANGES: Final = (
    NEWS,
    _exchange("ring", NEAR, FAR, 2),
    _exchange("ring", FAR, NEAR, 2),
    _exchange("chain", FAR, NEAR, 2),
    _exchange("chain", NEAR, FAR, 2, ON),
    _exchange("stub", FAR, NEAR, 1),
    _exchange("stub", NEAR, FAR, 1, ON),
)
QUEUES: Final = (
    Federated("queue", "work", Place(NEAR, "work"), Place(FAR, "work")),
    Federated("queue", "both", Place(NEAR, "both"), Place(FAR, "both")),
    Federated("queue", "both", Place(FAR, "both"), Place(NEAR, "both")),
)
LINKS: Final = (*EXCHANGES, *QUEUES)
OF_NEAR, OF_FAR = (NEAR, "/"), (FAR, "/")
# By the queue that reads an exchange: the sources that it has messages of, and the way of these.
READ: Final[dict[Place, dict[Source, Hops]]] = {
    Place(NEAR, "read news"): {Source(FAR, "news", False): (OF_FAR,)},
    Place(NEAR, "read ring"): {Source(NEAR, "ring", False): (), Source(FAR, "ring", False): (OF_FAR,)},
    Place(FAR, "read ring"): {Source(FAR, "ring", False): (), Source(NEAR, "ring", False): (OF_NEAR,)},
    Place(FAR, "read chain"): {Source(NEAR, "chain", False): (OF_NEAR,)},
    Place(NEAR, "read chain", ON): {Source(NEAR, "chain", False): (OF_FAR, OF_NEAR)},
    Place(FAR, "read stub"): {Source(FAR, "stub", False): (), Source(NEAR, "stub", False): (OF_NEAR,)},
    Place(NEAR, "read stub", ON): {Source(FAR, "stub", False): (OF_FAR,)},
}
# By the federated queue to which everything comes in the end: its sources.
GATHERED: Final[dict[Place, tuple[Source, ...]]] = {
    Place(NEAR, "work"): (Source(FAR, "work", True),),
    Place(NEAR, "both"): (Source(FAR, "both", True), Source(NEAR, "both", True)),
}


class Keeper(Insider):
    """A consumer inside a node, which keeps what it gets."""

    def __init__(self, world: FederationBetween, machine: Machine, node: Node, place: Place, prefetch: int) -> None:
        super().__init__(machine, node)
        self.world = world
        self.place = place
        self.got: list[int] = []
        self.session.consume(ConsumerWanted(place.name, prefetch=prefetch), self, lambda answer: None)
        node.schedule()

    def room(self, average_bytes: int) -> int:
        return ROOM

    def receive(self, deliveries: list[Delivery]) -> None:
        for one in deliveries:
            self.got.append(number_of(one.content))
            self.world.check_visits(self.place, one.content)

    def on_cancelled(self, tag: str) -> None:
        """The node of the queue is lost."""

    def leave(self) -> None:
        """Give back what it has."""
        self.close(0, "")
        self.node.schedule()


class FederationBetween(TwoClusters):
    """A run with federation links in both directions."""

    def __init__(self, plan: Plan, traced: bool = False) -> None:
        super().__init__(plan, traced)
        self.keepers: list[Keeper] = []
        self.arrivals: Counter[Place] = Counter()  # Of consumers.

    def sources(self) -> Collection[Source]:
        found = [source for sources in [*READ.values(), *GATHERED.values()] for source in sources]
        return list(dict.fromkeys(found))

    def works(self) -> list[tuple[str, WorkKey]]:
        return [(one.here.side, one.key) for one in LINKS]

    # -- The beginning -------------------------------------------------------------------------------------------

    def set_up(self) -> None:
        self.order(NEAR, AddVhost(ON))
        for side in (NEAR, FAR):
            self.order(side, SetGlobalParameter("cluster_name", side))
        self.run_for(1.0)
        if self.is_mirrored:
            for side, vhost in ((NEAR, "/"), (NEAR, ON), (FAR, "/")):
                mirrored = SetPolicy(vhost, "mirrored", "^(federation: |read |by key)", "queues", 5, {"ha-mode": "all"})
                self.order(side, mirrored)
            self.run_for(1.0)
        for place in dict.fromkeys(place for one in EXCHANGES for place in (one.here, one.there)):
            self.order(place.side, DeclareExchange(place.vhost, place.name, "topic"))
        queues = {*READ, Place(NEAR, SIDE_QUEUE), *(place for one in QUEUES for place in (one.here, one.there))}
        for number, place in enumerate(sorted(queues)):
            home = self.sides[place.side][number % len(self.sides[place.side])].node_name
            self.order(place.side, DeclareQueue(place.vhost, place.name, node=home))
        self.run_for(1.0)
        for number in range(KEYS):
            self.order(NEAR, Bind("/", NEWS.name, "queue", SIDE_QUEUE, f"key {number}"))
        for place in READ:
            self.order(place.side, Bind(place.vhost, place.name.removeprefix("read "), "queue", place.name, "#"))
        for one in LINKS:
            self.order(one.here.side, self._upstream(one, 5))
            self.order(one.here.side, self._policy(one))
        self.run_for(1.0)
        # From now on, what is published upstream is for here.
        self.must(START_S, lambda: not self._set_up_left(), self._set_up_left)
        self.must(START_S, lambda: not self._bare_left(), self._bare_left)
        for place in dict.fromkeys(one.here for one in QUEUES):
            self._keep(self.links_rng.choice(self.sides[place.side]), place, 0)

    def _set_up_left(self) -> str:
        return self.unrest() or next((wrong for one in EXCHANGES if (wrong := self._wrong_bindings(one))), "")

    def _upstream(self, one: Federated, prefetch: int) -> SetParameter:
        value: Json = {
            "uri": self.uris_of(one.there.side, "/%2f"), "reconnect-delay": 0.3, "prefetch-count": prefetch,
            "max-hops": one.max_hops, "resource-cleanup-mode": "never",
        }  # fmt: skip
        return SetParameter(UPSTREAM, one.here.vhost, one.upstream, value)

    def _policy(self, one: Federated) -> SetPolicy:
        definition: dict[str, Json] = {UPSTREAM: one.upstream}
        if one.kind == "queue" and self.is_mirrored:
            definition["ha-mode"] = "all"
        return SetPolicy(one.here.vhost, one.name, f"^{one.name}$", f"{one.kind}s", 9, definition)

    # -- Faults --------------------------------------------------------------------------------------------------

    def work_fault(self, name: str, seconds: float, rng: random.Random) -> None:
        one = rng.choice(LINKS)
        if name == "change_parameter":
            self.order(one.here.side, self._upstream(one, rng.choice((1, 7, 50))), rng)
        elif name == "bind":
            kind = rng.choice((Bind, Unbind))
            self.order(NEAR, kind("/", NEWS.name, "queue", SIDE_QUEUE, f"key {rng.randrange(KEYS)}"), rng)
        elif name == "consume":
            self._consume(rng)
        elif name == "unlink":
            # With a link, mirrors go, which is not what this is about.
            gone = SetPolicy("/", one.name, f"^{one.name}$", "queues", 9, {"ha-mode": "all"})
            is_mirror = one.kind == "queue" and self.is_mirrored
            self.order(one.here.side, gone if is_mirror else ClearPolicy(one.here.vhost, one.name), rng)
            self.scheduler.after(seconds, self.order, one.here.side, self._policy(one), rng)
        elif name == "cut_short":
            self._cut_short(rng.choice(EXCHANGES), rng)
        else:
            super().work_fault(name, seconds, rng)

    def _cut_short(self, one: Federated, rng: random.Random) -> None:
        """Leave upstream what one attempt leaves, or two, that are cut short after the first step, and begin anew."""
        there = self.nodes_of(one.there.side)
        names = [f"{one.link_queue.name} {suffix}" for suffix in SUFFIXES]
        missing = [name for name in names if there and (one.there.vhost, name) not in there[0].metadata.exchanges]
        arguments: Table = {
            MAX_HOPS_ARGUMENT: Field("l", one.max_hops),
            DOWNSTREAM_NAME: Field("S", one.here.side),
            DOWNSTREAM_VHOST: Field("S", one.here.vhost),
            **PURPOSE,
        }
        for name in rng.sample(missing, rng.randint(min(1, len(missing)), len(missing))):
            self.order(
                one.there.side,
                DeclareExchange(one.there.vhost, name, UPSTREAM_TYPE, True, True, True, arguments),
                rng,
            )
        self.order(one.here.side, RestartWork(*one.key), rng)

    def _consume(self, rng: random.Random) -> None:
        """A consumer comes, or one goes."""
        self.keepers = [one for one in self.keepers if one.is_alive]
        if self.keepers and rng.random() < 0.4:
            going = self.keepers.pop(rng.randrange(len(self.keepers)))
            if going.machine.loop is not None:
                going.machine.loop.call_soon(going.leave)
            return
        place = rng.choice([place for one in QUEUES for place in (one.here, one.there)])
        serving = [one for one in self.sides[place.side] if one.serving]
        if serving:
            self._keep(rng.choice(serving), place, rng.choice((0, 0, 3, 40)))

    def _keep(self, machine: Machine, place: Place, prefetch: int) -> None:
        def begin() -> None:
            node = None if machine.server is None or not machine.serving else machine.server.node
            if node is not None:
                self.arrivals[place] += 1
                self.keepers.append(Keeper(self, machine, node, place, prefetch))

        assert machine.loop is not None
        machine.loop.call_soon(begin)

    # -- What must hold ------------------------------------------------------------------------------------------

    def look(self, seconds: float) -> None:
        for place, ways in READ.items():
            for one in self.read(place, seconds) or ():
                self._check_way(place, number_of(one), _hops(one), ways)
        for place in dict.fromkeys(one.here for one in QUEUES):
            for one in self.read(place, seconds) or ():
                self.check_visits(place, one)
        self.raise_failure()

    def _check_way(self, place: Place, number: int, hops: Hops, ways: dict[Source, Hops]) -> None:
        source = self.sent[number - 1]
        if hops != ways.get(source):
            self.fail_now(f"message {number} of {source.name} of {source.side} came to {place} through {list(hops)}")

    def check_visits(self, place: Place, one: bytes) -> None:
        """Compare how often a message has come to a queue with how often it can have been wanted there."""
        visits = max((entry.get(VISIT_COUNT, 0) for entry in _received_from(one)), default=0)
        # A consumer comes back to a queue whose node was lost.
        wanted = self.arrivals[place] + sum(machine.lives for machine in self.sides[place.side])
        if visits > wanted:
            self.fail(f"message {number_of(one)} came to {place} {visits} times, and was wanted {wanted} times")

    def unrest(self) -> str:
        return super().unrest() or next((left for one in EXCHANGES if (left := self.left_in(one.link_queue))), "")

    def _internal(self, one: Federated, is_bare: bool) -> list[str]:
        """Return the internal exchanges upstream that are bound to nothing and by nothing, or the others."""
        there, vhost = self.nodes_of(one.there.side)[0].metadata, one.there.vhost
        bound = {binding.destination for binding in there.bindings.from_source(vhost, one.name)}
        names = [name for suffix in SUFFIXES if (vhost, name := f"{one.link_queue.name} {suffix}") in there.exchanges]
        return [name for name in names if is_bare != (name in bound or there.bindings.is_source(vhost, name))]

    def _bare_left(self) -> str:
        """Return which link has an internal exchange upstream beside the one that it uses."""
        left = ((one.here, self._internal(one, is_bare=True)) for one in EXCHANGES)
        return next((f"{here} has the bare internal exchanges {names} upstream" for here, names in left if names), "")

    def _wrong_bindings(self, one: Federated) -> str:
        """Return how the bindings upstream differ from those here."""
        here, there = self.nodes_of(one.here.side)[0].metadata, self.nodes_of(one.there.side)[0].metadata
        internal = self._internal(one, is_bare=False)
        if len(internal) != 1:
            return f"{one.here} has the internal exchanges {internal} upstream"
        made = {
            binding.key
            for binding in there.bindings.from_source(one.there.vhost, one.name)
            if binding.destination == internal[0]
        }
        wanted = {binding.key for binding in here.bindings.from_source(one.here.vhost, one.name)}
        return "" if made == wanted else f"{one.here} is bound by {sorted(wanted)}, and upstream by {sorted(made)}"

    def finish(self) -> None:
        self.run_for(2.0)
        for one in LINKS:
            self.demand(one.here.side, self._policy(one))
        self._dismiss()
        self.run_for(2.0)
        self.await_rest()
        for kind in (Bind, Unbind):
            for number in range(KEYS):
                self.demand(NEAR, kind("/", NEWS.name, "queue", SIDE_QUEUE, f"key {number}"))
            self.run_for(1.0)
            self.must(START_S, lambda: not self._set_up_left(), self._set_up_left)
        # What a former attempt asked for may be made late, and is deleted when the link looks for the first time.
        self.must(CHECK_S + START_S, lambda: not self._bare_left(), self._bare_left)
        self.look(START_S)
        for place, ways in READ.items():
            read = self.read(place, START_S)
            if read is None:
                self.fail_now(f"{place} could not be read")
            self.compare(place, list(map(number_of, read or ())), ways)
        self.raise_failure()
        self._check_still()
        for place, sources in GATHERED.items():
            self._finish_queue(place, sources)

    def _dismiss(self) -> None:
        """All consumers go."""
        for one in self.keepers:
            if one.is_alive and one.machine.loop is not None:
                one.machine.loop.call_soon(one.leave)
        self.keepers.clear()

    def _check_still(self) -> None:
        """Nobody consumes: what is published upstream stays there."""
        counts = {place: self._count(place) for place in GATHERED}
        for source in dict.fromkeys(source for sources in GATHERED.values() for source in sources):
            if source.side == FAR:
                found = self.leading(Place(source.side, source.name))
                if found is None or found[0].loop is None:
                    self.fail_now(f"nobody leads {source.name}")
                    return
                found[0].loop.call_soon(self.burst, found[0], source, 5)
        self.run_for(STILL_S)
        for place, before in counts.items():
            if self._count(place) != before:
                self.fail_now(f"{place} has got messages though nobody consumes from it")

    def _count(self, place: Place) -> int:
        found = self.leading(place)
        return -1 if found is None else found[2].ready_count + found[2].unacked_count

    def _finish_queue(self, here: Place, sources: tuple[Source, ...]) -> None:
        """Everything comes to a queue, once.

        A message whose acknowledgement was lost stays where it was until the link asks for it again, and may come back
        meanwhile. So of queues that are upstream of each other, either may have several copies of a message: each was
        made of the one before, at the other side, which knows its origin. Only the last is known to nobody. If all of
        them go to the one side and then to the other, none is left but the last; and no message is lost thereby.
        """
        there = Place(FAR, here.name)
        if any(one.here == there for one in QUEUES):
            self._gather(there, here)
            self._dismiss()
            self.run_for(1.0)
        self._gather(here, there)
        self.compare(here, self.keepers[-1].got, sources)
        self.raise_failure()

    def _gather(self, place: Place, upstream: Place) -> None:
        """One consumer gets everything."""
        found = self.leading(place)
        if found is None:
            self.fail_now(f"nobody leads {place}")
            return
        self._keep(found[0], place, 0)
        # A link with a prefetch of 1 makes its way to and fro for each of them.
        self.must(QUIET_S, lambda: not self.left_in(upstream), lambda: self.left_in(upstream))
        self.run_for(1.0)


def _received_from(one: bytes) -> list[dict[str, Any]]:
    headers: dict[str, Any] = decode_content(one, HEADER_AT).headers or {}
    if RECEIVED_FROM not in headers:
        return []
    return [{name: field.value for name, field in entry.value.items()} for entry in headers[RECEIVED_FROM].value]


def _hops(one: bytes) -> Hops:
    """Return where a message came from, the last one first."""
    return tuple((entry.get(CLUSTER, ""), entry.get(VHOST, "")) for entry in _received_from(one))
