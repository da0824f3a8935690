"""Simulates clusters of one size after the other, and computes lines through the results.

`grown_cluster` measures one cluster: its cost when idle, the cost of agreement, the placement of copies, and how long
the queues of a killed node have no master.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from benchmarks.scaling.world import Plant, metered, node_of
from benchmarks.single.growth import Point
from leveret.links import frame_types

QUEUES: Final = (100, 1_000, 10_000, 100_000)
NODES: Final = (3, 5, 10, 20, 50)
MEMBERS: Final = (1, 2, 3, 5)
COMMON: Final = 1_000  # Queues in clusters that differ only in their size.
IDLE_S: Final = 10.0
AT_ONCE: Final = 60  # Declares in progress in the whole cluster.
PLAIN: Final = 300
SETTLE_S: Final = 3.0
PATIENCE_S: Final = 60.0
LOOK_S: Final = 0.01
STRAIGHT: Final = 20  # Number of nodes up to which a frame costs the leader the same.
NET_TICKTIME_S: Final = 4.0


# -- Clusters in virtual time ---------------------------------------------------------------------------------------


def grown_cluster(nodes: int, queues: int, charged: bool = True) -> Point:
    """Measures a cluster of one size: idle, with declares, with queues, and after the loss of a node."""
    plant = Plant(nodes, charged=charged)
    point: Point = {"nodes": nodes, "queues": queues}
    with metered(plant.meter):
        plant.start()
        plant.run(SETTLE_S)
        point["connections"] = plant.connections()
        point |= _idle(plant, "idle")
        point |= _agreeing(plant, queues)
        plant.run(SETTLE_S)
        point |= _idle(plant, "laden")
        point |= _spread(plant)
        point |= _loss(plant)
        plant.close()
    return point


def _idle(plant: Plant, name: str) -> Point:
    """Measures traffic on links of an idle cluster, for each node and for the leader."""
    meter, size, leader = plant.meter, len(plant.machines), plant.leader().name
    meter.reset()
    plant.run(IDLE_S)
    return {
        f"{name}_writes": sum(meter.writes.values()) / IDLE_S / size,
        f"{name}_bytes": sum(meter.bytes.values()) / IDLE_S / size,
        f"{name}_leader_bytes": meter.bytes[leader] / IDLE_S,
        f"{name}_busy": sum(meter.busy_s.values()) / IDLE_S / size,
        f"{name}_leader_busy": meter.busy_s[leader] / IDLE_S,
        f"{name}_ring_frames": meter.of_kind(frame_types.RING) / IDLE_S / size,
    }


def _agreeing(plant: Plant, queues: int) -> Point:
    """Measures declares: one at a time at a node that is not the leader, then many at once, with and without
    mirrors."""
    meter, leader = plant.meter, plant.leader()
    away = [machine for machine in plant.machines if machine is not leader]
    at_once = max(1, AT_ONCE // len(plant.machines))
    plain = min(PLAIN, queues)
    alone = [plant.declare(1, away[:1], 1, f"alone-{number}-")[0] for number in range(5)]
    meter.reset()
    plain_s = plant.declare(plain, plant.machines, at_once, "plain-")[-1]
    plain_us, plain_frames = meter.busy_s[leader.name] / plain * 1e6, sum(meter.frames.values()) / plain
    plant.mirror()
    meter.reset()
    mirrored_s = plant.declare(queues, plant.machines, at_once)[-1]
    busy = [meter.busy_s[machine.name] for machine in away]
    return {
        "alone_s": sorted(alone)[2],
        "plain_per_s": plain / plain_s,
        "plain_leader_us": plain_us,
        "plain_frames": plain_frames,
        "mirrored_per_s": queues / mirrored_s,
        "mirrored_leader_us": meter.busy_s[leader.name] / queues * 1e6,
        "mirrored_other_us": sum(busy) / len(busy) / queues * 1e6,
        "mirrored_frames": sum(meter.frames.values()) / queues,
        "mirrored_bytes": sum(meter.bytes.values()) / queues,
    }


def _spread(plant: Plant) -> Point:
    """Returns where the nodes have placed masters and copies."""
    masters: Counter[str] = Counter()
    copies: Counter[str] = Counter()
    for spec in node_of(plant.leader()).metadata.queues.values():
        if spec.view is not None:
            masters[spec.node] += 1
            copies.update(spec.view.ring)
    size = len(plant.machines)
    return {
        "masters_mean": sum(masters.values()) / size,
        "masters_max": max(masters.values()),
        "copies_mean": sum(copies.values()) / size,
        "copies_max": max(copies.values()),
    }


def _loss(plant: Plant) -> Point:
    """Kills a node that is not the Raft leader."""
    meter, leader = plant.meter, plant.leader()
    lost = next(machine for machine in plant.machines if machine is not leader)
    store = node_of(leader).metadata
    copies = sum(spec.view is not None and lost.node_name in spec.view.ring for spec in store.queues.values())
    # Queues without mirrors have no master until their node is back.
    plain = [spec.name for spec in store.queues.values() if spec.view is None]
    meter.reset()
    index, began = store.index, plant.scheduler.now
    plant.kill(lost)
    for name in plain:
        plant.pending.pop(name, None)
    masters = len(plant.pending)
    plant.run(PATIENCE_S, lambda: not plant.pending, step_s=LOOK_S)
    served_s = max(plant.served_at, default=began) - began
    leader_s, longest_s = meter.busy_s[leader.name], meter.longest_s
    plant.run(SETTLE_S)
    return {
        "lost_masters": masters,
        "lost_copies": copies,
        "promoted": len(plant.served_at),
        "served_s": served_s,
        "served_leader_s": leader_s,
        "longest_s": longest_s,
        "settled_busy_s": max(meter.busy_s.values()),
        "lost_commands": store.index - index,
    }


def model_of_real(queues: int, away: bool) -> Point:
    """Does in virtual time what `cross_check` does."""
    plant = Plant(3, charged=True)
    with metered(plant.meter):
        plant.start()
        leader = plant.leader()
        master = plant.machines[1] if away else leader
        assert isinstance(master, type(plant.machines[0])) and (master is leader) is not away
        plant.mirror({"ha-mode": "all"})
        plant.meter.reset()
        declare_s = plant.declare(queues, [master], AT_ONCE)[-1]
        busy = dict(plant.meter.busy_s)
        plant.run(SETTLE_S)
        began = plant.scheduler.now
        plant.meter.reset()
        plant.kill(master)
        plant.run(PATIENCE_S, lambda: not plant.pending, step_s=LOOK_S)
        served_s, served_busy_s = max(plant.served_at) - began, max(plant.meter.busy_s.values())
        plant.run(SETTLE_S)
        settled_busy_s, longest_s = max(plant.meter.busy_s.values()), plant.meter.longest_s
        plant.close()
    followers = [busy[machine.name] for machine in plant.machines if machine is not leader]
    return {
        "queues": queues,
        "declares_per_s": queues / declare_s,
        "leader_us": busy[leader.name] / queues * 1e6,
        "follower_us": sum(followers) / len(followers) / queues * 1e6,
        "served_s": served_s,
        "served_busy_s": served_busy_s,
        "settled_busy_s": settled_busy_s,
        "longest_s": longest_s,
    }


# -- Lines through what was found -----------------------------------------------------------------------------------


class Line(NamedTuple):
    """y = base + slope · x, by least squares."""

    base: float
    slope: float

    def at(self, x: float) -> float:
        return self.base + self.slope * x


def fitted(points: Sequence[tuple[float, float]]) -> Line:
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
    return Line(mean_y - slope * mean_x, slope)


def leader_line(clusters: Sequence[Point], kind: str) -> Line:
    """Returns microseconds of the leader's processor for a command, by the frames that all nodes send for it."""
    few = [point for point in clusters if point["nodes"] <= STRAIGHT]
    return fitted([(point[f"{kind}_frames"], point[f"{kind}_leader_us"]) for point in few])


def loss_s(clusters: Sequence[Point], masters: float) -> float | None:
    """Returns the time until that many queues with a lost master are served; None: more than was ever simulated.

    Between two simulated losses it is between their times, since the curve bends: see docs/scaling.md.
    """
    known = sorted({point["lost_masters"]: point["served_s"] for point in clusters}.items())
    for (few, short_s), (many, long_s) in pairwise([(0.0, 0.0), *known]):
        if masters <= many:
            return short_s + (long_s - short_s) * (masters - few) / (many - few)
    return None


def capacity(nodes: int, members: int, costs: Sequence[Point]) -> float:
    """Returns messages a second of a whole cluster with evenly spread masters and mirrors, and one processor for
    each node."""
    of = {round(point["members"]): point for point in costs}
    return nodes * 1e6 / (of[members]["master_us"] + (members - 1) * of[members]["mirror_us"])
