"""Tables of the results of `scaling`. A line above each says whether it was measured, simulated or calculated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from benchmarks.scaling.clusters import (
    COMMON,
    MEMBERS,
    NET_TICKTIME_S,
    NODES,
    QUEUES,
    STRAIGHT,
    capacity,
    leader_line,
    loss_s,
)
from benchmarks.scaling.store import COPIES, LOCATORS
from benchmarks.single.growth import Point

Found = Mapping[str, list[Point]]
Column = tuple[str, Callable[[Point], str]]

MIB: Final = 1 << 20


def markdown(found: Found) -> str:
    return "\n".join(line for section in SECTIONS for line in section(found))


def table(columns: Sequence[Column], points: Sequence[Point]) -> Iterator[str]:
    yield ""
    yield "| " + " | ".join(title for title, _ in columns) + " |"
    yield "|" + " ---: |" * len(columns)
    for point in points:
        yield "| " + " | ".join(shown(point) for _, shown in columns) + " |"
    yield ""


def number(name: str, times: float = 1.0, places: int = 0) -> Callable[[Point], str]:
    """Returns a column; empty where a point has no such number."""
    return lambda point: f"{point[name] * times:,.{places}f}" if name in point else ""


def _metadata(found: Found) -> Iterator[str]:
    points = found.get("metadata")
    if not points:
        return
    yield "### Metadata"
    yield ""
    yield "Measured: the metadata store, with queues that have three members and one binding. Processor time."
    columns: list[Column] = [
        ("queues", number("queues")),
        ("declare, µs", number("declare_us", places=1)),
        ("bind, µs", number("bind_us", places=1)),
        ("change of view, µs", number("view_us", places=1)),
        ("memory, MiB", number("memory_bytes", 1 / MIB, 1)),
        ("bytes of memory a queue", lambda point: f"{point['memory_bytes'] / point['queues']:,.0f}"),
        ("snapshot, MB", number("snapshot_bytes", 1e-6, 2)),
        ("written in, s", number("snapshot_s", places=3)),
        ("read in, s", number("restore_s", places=3)),
    ]
    yield from table(columns, points)


def _placement(found: Found) -> Iterator[str]:
    if f"placement {LOCATORS[0]}" not in found:
        return
    queues = found[f"placement {LOCATORS[0]}"][0]["queues"]
    yield "### Placement"
    yield ""
    yield (
        f"Measured: the code that places queues, for {queues:,.0f} queues of {COPIES} members, declared at all nodes "
        "in turn, each choice knowing all earlier ones."
    )
    rows = [
        point
        | {
            f"{key} {locator}": value
            for locator in LOCATORS
            for key, value in found[f"placement {locator}"][at].items()
        }
        for at, point in enumerate(found[f"placement {LOCATORS[0]}"])
    ]
    columns: list[Column] = [
        ("nodes", number("nodes")),
        ("masters a node", number("masters_mean", places=1)),
        *((f"most, {locator}", number(f"masters_max {locator}")) for locator in LOCATORS),
        ("copies a node", number("copies_mean", places=1)),
        ("most, whatever the locator", lambda point: f"{max(point[f'copies_max {one}'] for one in LOCATORS):,.0f}"),
        ("a choice, µs", number("choice_us", places=1)),
    ]
    yield from table(columns, rows)
    if clusters := same_queues(found):
        yield "Simulated: where queues are placed that clients declare at all nodes at once."
        columns = [
            ("nodes", number("nodes")),
            ("masters a node", number("masters_mean", places=1)),
            ("most", number("masters_max")),
            ("copies a node", number("copies_mean", places=1)),
            ("most", number("copies_max")),
        ]
        yield from table(columns, clusters)


def _rebalance(found: Found) -> Iterator[str]:
    if "rebalance" not in found:
        return
    yield "### A node is added"
    yield ""
    yield (
        "Measured: the plan that gives the new node its share. A mirrored queue can only move to a node with a mirror, "
        "so a plan for such queues looks at more of them."
    )
    rows = []
    for key, kind in (("rebalance", "no"), ("rebalance mirrored", "three")):
        for queues in sorted({point["queues"] for point in found[key]}):
            points = {point["nodes"]: point for point in found[key] if point["queues"] == queues}
            rows.append((kind, queues, points))
    sizes = sorted({point["nodes"] for point in found["rebalance"]})
    yield ""
    yield "| copies | queues | " + " | ".join(f"{size:.0f} nodes: moves, plan in s" for size in sizes) + " |"
    yield "| --- |" + " ---: |" * (1 + len(sizes))
    for kind, queues, points in rows:
        cells = (f"{points[size]['moves']:,.0f} in {points[size]['plan_s']:.2f}" for size in sizes)
        yield f"| {kind} | {queues:,.0f} | " + " | ".join(cells) + " |"
    yield ""


def same_queues(found: Found) -> list[Point]:
    """Returns the clusters that differ only in their size."""
    points = found.get("clusters", [])
    common = [point for point in points if point["queues"] == COMMON]
    return common or list(points)


def _links(found: Found) -> Iterator[str]:
    if not (points := same_queues(found)):
        return
    yield "### Links, and an idle cluster"
    yield ""
    yield (
        f"Simulated. The last three columns are with {points[-1]['queues']:,.0f} mirrored queues that nobody uses. "
        "Bytes are those that a node writes to others."
    )
    columns: list[Column] = [
        ("nodes", number("nodes")),
        ("TCP connections, all", number("connections")),
        ("a node", lambda point: f"{2 * (point['nodes'] - 1):,.0f}"),
        ("writes/s a node", number("idle_writes", places=1)),
        ("bytes/s a node", number("idle_bytes")),
        ("bytes/s, leader", number("idle_leader_bytes")),
        ("processor a node, %", number("idle_busy", 100, 2)),
        ("leader, %", number("idle_leader_busy", 100, 2)),
        ("writes/s with queues", number("laden_writes", places=1)),
        ("bytes/s with queues", number("laden_bytes")),
        ("processor with queues, %", number("laden_busy", 100, 2)),
    ]
    yield from table(columns, points)


def _agreement(found: Found) -> Iterator[str]:
    if not (points := same_queues(found)):
        return
    yield "### Agreement"
    yield ""
    yield (
        "Simulated: a network of 0.1 ms, syncs of 0.5 ms, one processor for each node. One declare at a time at a node "
        "that is not the leader, then 60 at a time at all nodes."
    )
    columns: list[Column] = [
        ("nodes", number("nodes")),
        ("one declare, ms", number("alone_s", 1e3, 2)),
        ("declares/s", number("plain_per_s")),
        ("leader, µs each", number("plain_leader_us")),
        ("frames each", number("plain_frames", places=1)),
        ("mirrored declares/s", number("mirrored_per_s")),
        ("leader, µs each", number("mirrored_leader_us")),
        ("another node, µs each", number("mirrored_other_us")),
        ("frames each", number("mirrored_frames", places=1)),
        ("bytes each", number("mirrored_bytes")),
    ]
    yield from table(columns, points)
    plain, mirrored = leader_line(points, "plain"), leader_line(points, "mirrored")
    yield (
        f"Straight lines through the rows up to {STRAIGHT} nodes, by the frames that all nodes send: "
        f"{plain.base:,.0f} + {plain.slope:,.1f} µs a frame for a declare, {mirrored.base:,.0f} + "
        f"{mirrored.slope:,.1f} µs a frame for one with mirrors."
    )
    yield ""


def _loss(found: Found) -> Iterator[str]:
    if not (points := found.get("clusters")):
        return
    yield "### A node is lost"
    yield ""
    yield "Simulated: the process is killed, its links close at once; it was not the Raft leader. Queues are idle."
    columns: list[Column] = [
        ("nodes", number("nodes")),
        ("queues", number("queues")),
        ("copies lost", number("lost_copies")),
        ("masters lost", number("lost_masters")),
        ("promoted", number("promoted")),
        ("all served after, ms", number("served_s", 1e3)),
        ("commands in 3 s", number("lost_commands")),
        ("longest turn of a node, ms", number("longest_s", 1e3)),
        ("busiest node in 3 s, s of processor", number("settled_busy_s", places=2)),
    ]
    yield from table(columns, points)
    yield (
        "Calculated from the runs of three nodes, by straight lines between them: seconds until all queues have a "
        "master, if masters are spread evenly. If a machine loses its power, add "
        f"{NET_TICKTIME_S:.0f} s until its silence is noticed. *Beyond*: more masters on a node than were ever lost "
        "here."
    )
    three = [point for point in points if point["nodes"] == NODES[0]]
    rows: list[Point] = [{"nodes": nodes} for nodes in NODES]
    columns = [("nodes", number("nodes")), *((f"{queues:,} queues", _served(queues, three)) for queues in QUEUES)]
    yield from table(columns, rows)


def _served(queues: int, three: Sequence[Point]) -> Callable[[Point], str]:
    def shown(point: Point) -> str:
        seconds = loss_s(three, queues // point["nodes"])
        return "beyond" if seconds is None else f"{seconds:,.2f}"

    return shown


def _traffic(found: Found) -> Iterator[str]:
    if not (points := found.get("traffic")):
        return
    yield "### Messages"
    yield ""
    yield (
        "Simulated: one queue, persistent messages of 100 bytes, confirmed, consumed and acknowledged at its master, "
        "one processor for each node."
    )
    columns: list[Column] = [
        ("members", number("members")),
        ("messages/s", number("per_s")),
        ("master, µs each", number("master_us", places=2)),
        ("a mirror, µs each", number("mirror_us", places=2)),
        ("bytes the master sends to mirrors, each", number("master_link_bytes")),
        ("bytes on all links, each", number("link_bytes")),
    ]
    yield from table(columns, points)
    members = [one for one in MEMBERS if any(point["members"] == one for point in points)]
    yield (
        "Calculated from that: the total of a cluster of N nodes, with many queues spread evenly and clients at "
        "their masters: N / (master + (M − 1) mirror) for M members, millions a second."
    )
    columns = [("nodes", number("nodes"))]
    for one in members:
        columns.append((f"{one} members", _capacity(one, points)))
    yield from table(columns, [{"nodes": nodes} for nodes in NODES])


def _capacity(members: int, points: Sequence[Point]) -> Callable[[Point], str]:
    def shown(point: Point) -> str:
        nodes = round(point["nodes"])
        return f"{capacity(nodes, members, points) / 1e6:,.2f}" if nodes >= members else ""

    return shown


def _real(found: Found) -> Iterator[str]:
    if not found.get("real"):
        return
    yield "### The model beside three real processes"
    yield ""
    yield (
        "Three nodes; one of them is the master of all queues, the others mirror them; the master is killed. "
        "*Processor* is the busier of the two other nodes, until all queues are served. In reality that is until a "
        "publish to each is confirmed; `calm` is how long that takes without a loss."
    )
    yield ""
    yield "| | " + " | ".join(_title(point) for point in found["real"]) + " |"
    yield "| --- |" + " ---: |" * len(found["real"])
    rows: tuple[tuple[str, str, float, int], ...] = (
        ("leader, µs a declare", "leader_us", 1, 0),
        ("another node, µs a declare", "follower_us", 1, 0),
        ("declares/s", "declares_per_s", 1, 0),
        ("processor until served, s", "served_busy_s", 1, 2),
        ("processor until all has settled, s", "settled_busy_s", 1, 2),
        ("longest turn of a node, s", "longest_s", 1, 2),
        ("all served after, s", "served_s", 1, 2),
        ("calm, processor, s", "calm_busy_s", 1, 2),
        ("calm, s", "calm_s", 1, 2),
        ("bytes of memory a queue and node", "memory_bytes", 1, 0),
    )
    for title, key, times, places in rows:
        for kind in ("real", "modelled"):
            if found.get(kind) and key in found[kind][0]:
                cells = (f"{point[key] * times:,.{places}f}" for point in found[kind])
                yield f"| {title}, {kind} | " + " | ".join(cells) + " |"
    yield ""


def _title(point: Point) -> str:
    return f"{point['queues']:,.0f}, {'master on another node' if point['away'] else 'master on the leader'}"


SECTIONS: Final = (_metadata, _placement, _rebalance, _links, _agreement, _loss, _traffic, _real)
