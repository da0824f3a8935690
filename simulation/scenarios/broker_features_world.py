"""How a run with `--special` begins and ends: it declares what is in `features.broker_features`, and checks it.

A part of the world. In the end, when everything is healed:

- every stream is read from its beginning, and its readers must have come to its end; then messages are published one by
  one, until it is known what retention must have removed. After everything else, which mostly includes a power failure
  of all nodes, it is read once more, and offsets still mean the same;
- all delayed messages have become due, and another delayed message comes in time;
- connections and channels are opened, one after the other, until the limit is reached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from leveret.metadata.model.commands import (
    AddVhost,
    ClearUserLimits,
    SetPermissions,
    SetPolicy,
    SetUserLimits,
    SetVhostLimits,
)
from simulation.clients.client import IDLE_S, Step
from simulation.features.broker_features import (
    CONNECTIONS_MAX,
    DELAYED_QUEUE,
    HIDDEN_QUEUE,
    QUEUES_MAX,
    STREAMS,
    TIGHT,
    Stream,
    draw_streams,
)

if TYPE_CHECKING:
    from simulation.checkers.broker_features_checker import BrokerFeaturesChecker
    from simulation.world import World

START_S: Final = 60.0
SCAN_S: Final = 30.0
BROKER_FEATURES_QUEUES: Final = (*STREAMS, HIDDEN_QUEUE)
UNREST_S: Final = 60.0
AWAY_S: Final = 8.0  # Until every node has missed a machine, and found it again.
LATE_MS: Final = 3_000
LATE_S: Final = 1.0  # How late a delayed message may come, without faults.
SKEW_S: Final = 300.0  # Clocks that are further apart are set forward before delayed messages are waited for.
CHANNELS_MAX: Final = 5


class BrokerFeatures:
    """Begins and ends a run with features of the broker."""

    def __init__(self, world: World) -> None:
        self.world = world

    @property
    def clients(self) -> Any:
        """Returns the clients, each a `BrokerFeaturesClient`."""
        return self.world.clients

    def _give(self, number: int, what: str, **arguments: Any) -> None:
        self.clients[number % len(self.clients)].give(Step(0, 0.0, what, arguments))

    def _wait(self, what: str) -> None:
        self.world.must(START_S, self.world.all_idle, lambda: f"{what}: {self.world.standing()}")

    def begin_special(self, checker: BrokerFeaturesChecker) -> None:
        for number, (name, kind) in enumerate(draw_streams(self.world.plan.seed, self.world.plan.nodes).items()):
            checker.streams.add(name, kind)
            self._give(number, "declare", queue=name, durable=True, arguments=kind.arguments())
        self._give(2, "delayer")
        self._wait("streams and delays could not be declared")
        for name in (*BROKER_FEATURES_QUEUES, DELAYED_QUEUE):
            checker.queue(name)  # Their disks may be lost before any client has used them.
        self.world.operators.order(AddVhost(TIGHT))
        self.world.run_for(2.0)
        self.world.operators.order(
            SetVhostLimits(TIGHT, {"max-connections": CONNECTIONS_MAX, "max-queues": QUEUES_MAX})
        )
        self.world.operators.order(SetPermissions("guest", TIGHT, ".*", ".*", ".*"))
        for name, features in checker.features.items():
            if features.by_operator:
                limit: dict[str, Any] = {"delivery-limit": features.delivery_limit}
                self.world.operators.order(
                    SetPolicy("/", f"limit of {name}", f"^{name}$", "classic_queues", 0, limit, operator=True)
                )
        self.world.run_for(2.0)

    # -- The end -------------------------------------------------------------------------------------------------

    def end_special(self, checker: BrokerFeaturesChecker) -> None:
        for number, name in enumerate(STREAMS):
            self._give(number, "publish", queue=name, count=1, padding=0, persistent=True, wait=True)
        self._wait("the last publish to streams")
        self.world.run_for(IDLE_S + 2)
        # One that takes its time, and takes few at once, may be on its way still.
        idle_since = self.world.scheduler.now - IDLE_S
        readers = [
            (channel.queue, channel.stream)
            for client in self.clients
            for channel in client.consumers
            if channel.queue in STREAMS and channel.is_hungry() and channel.session.styles[channel.number] != "hold"
            if channel.busy_at < idle_since
        ]
        self.scan_streams(checker)
        for queue, reader in readers:
            checker.streams.check_served(queue, reader)
        self._trim_streams(checker)
        self._drop_all()
        self._await_delays(checker)
        self._find_room(checker)

    def _drop_all(self) -> None:
        for client in self.clients:
            client.give(Step(0, 0.0, "drop", {}))
        self.world.run_for(2.0)

    def scan_streams(self, checker: BrokerFeaturesChecker) -> dict[str, list[int]]:
        """Reads all of each stream."""
        found: dict[str, list[int]] = {name: [] for name in STREAMS}
        for number, (name, into) in enumerate(found.items()):
            self._give(number, "scan", queue=name, into=into)
        owed = {name: checker.streams.owed(name) for name in STREAMS}
        self.world.run_for(
            SCAN_S, lambda: self.world.all_idle() and all(owed[name] <= set(found[name]) for name in STREAMS)
        )
        self.world.run_for(3.0)
        for name, numbers in found.items():
            checker.streams.on_scanned(name, numbers)
        self.world.run_for(0.0)
        return found

    def _trim_streams(self, checker: BrokerFeaturesChecker) -> None:
        """Checks that retention removes messages when enough have come after them."""
        for name in STREAMS:
            kind, since = checker.streams.books[name].kind, self.world.scheduler.now
            if kind.keeps_all or checker.queue(name).lost or checker.skew_ms:
                continue
            self._drip(name, kind)
            if kind.max_age_s is not None:
                self.world.run_for(kind.max_age_s * 1.2 + 1)
                self._give(0, "drip", queue=name, count=1, padding=0, seconds=1.0)
                self._wait("messages could not be published one by one")
            checker.streams.check_trimmed(name, self.scan_streams(checker)[name], since)

    def _drip(self, name: str, kind: Stream) -> None:
        padding = 500
        count = 2 if kind.max_bytes is None else (kind.max_bytes + 3 * (kind.segment_bytes or 0)) // padding
        self._give(0, "drip", queue=name, count=count, padding=padding, seconds=1.0 if kind.max_age_s else 0.02)
        self._wait("messages could not be published one by one")

    def _await_delays(self, checker: BrokerFeaturesChecker) -> None:
        delayed = [one for one in checker.messages.values() if checker.is_delayed(one)]
        due = max((one.published_at + (one.extras.delay_ms or 0) / 1000 for one in delayed), default=0.0)
        self._put_clocks_forward(checker)
        self.world.run_for(max(0.0, due + min(checker.skew_ms / 1000, SKEW_S) + LATE_S - self.world.scheduler.now))
        if any(checker.queue(name).lost for name in (HIDDEN_QUEUE, DELAYED_QUEUE)):
            return
        known = len(checker.messages)
        self._give(0, "delay", count=3, padding=10, persistent=True, delay_ms=LATE_MS, wait=True)
        self._wait("nothing could be delayed")
        self.world.run_for(LATE_MS / 1000 + LATE_S)
        into: list[int] = []
        self._give(1, "browse", queue=DELAYED_QUEUE, into=into)
        self._wait("what was delayed could not be looked for")
        missing = [one for one in checker.messages.values() if one.number > known and one.number not in into]
        if any(one.state == "confirmed" for one in missing):
            checker.fail(
                f"delayed by {LATE_MS} ms, and not there after {LATE_S} s more: {[str(one) for one in missing]}"
            )

    def _put_clocks_forward(self, checker: BrokerFeaturesChecker) -> None:
        """Sets all clocks forward to the fastest: where clocks are hours apart, a message dated by one node would be
        due hours later at another, and nobody simulates a million ticks for that."""
        ms = checker.skew_ms
        if ms > SKEW_S * 1000:
            self.world.note("world", f"all clocks are put forward by {ms} ms")
            for node in range(len(self.world.machines)):
                self.world.fault_skew(node, ms)

    def _find_room(self, checker: BrokerFeaturesChecker) -> None:
        """Checks the limits of `tight` after a node with open connections has died: those no longer count."""
        for number in range(len(self.world.machines)):
            self._give(number, "crowd", node=number, count=1, seconds=UNREST_S)
        self._wait("nobody could go where there is little room")
        machine = self.world.rng.choice(self.world.machines)
        if len(self.world.machines) > 1:  # Otherwise there is no node that could count them.
            checker.on_disturbed(self.world.scheduler.now + UNREST_S)
            machine.kill(power=self.world.rng.random() < 0.5)
            self.world.run_for(1.0)
            machine.start()
            self.world.must(
                START_S, self.world.all_serve, lambda: f"after {machine.name} fell: {self.world.standing()}"
            )
            self.world.run_for(AWAY_S)
        for client in self.clients:
            for session in client.crowd:
                session.drop()
        self._drop_all()
        self.world.operators.order(SetUserLimits("guest", {"max-channels": CHANNELS_MAX}))
        self.world.run_for(3.0)
        taken: list[int] = []
        node = (self.world.machines.index(machine) + 1) % len(self.world.machines)
        self._give(0, "fill_room", node=node, connections=CONNECTIONS_MAX, channels=CHANNELS_MAX, into=taken)
        self._wait("room could not be looked for")
        checker.limits.on_room("connections", taken[0], CONNECTIONS_MAX)
        checker.limits.on_room("channels", taken[1], CHANNELS_MAX)
        self.world.operators.order(ClearUserLimits("guest"))
        self.world.run_for(2.0)
        for machine in self.world.machines:
            assert machine.server is not None and machine.server.node is not None
            known = {name for vhost, name in machine.server.node.metadata.queues if vhost == TIGHT}
            checker.limits.on_known(machine.name, known, checker.has_lost_disks)
        self.world.run_for(0.0)
