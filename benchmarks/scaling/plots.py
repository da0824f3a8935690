"""Plots of the results of `scaling`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from matplotlib.figure import Figure

from benchmarks.report.plots import plain_axes, save
from benchmarks.scaling.clusters import NODES, capacity
from benchmarks.scaling.tables import same_queues
from benchmarks.single.growth import Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Found = Mapping[str, list[Point]]
Curve = tuple[str, Sequence[float], Sequence[float]]

COLOURS: Final = ("#2f6f9f", "#d98c3f", "#8a5fa8", "#4f8f5b")


def draw(found: Found, folder: Path) -> list[Path]:
    files = []
    if found.get("clusters") and found.get("traffic"):
        files.append(save(_nodes(found), folder / "scaling-nodes.png"))
    if found.get("clusters") and found.get("metadata"):
        files.append(save(_queues(found), folder / "scaling-queues.png"))
    return files


def _nodes(found: Found) -> Figure:
    """Plots what depends on the number of nodes."""
    figure = Figure(figsize=(13, 7), layout="constrained")
    panels = iter(figure.subplots(2, 3).flat)
    points = same_queues(found)
    nodes = [point["nodes"] for point in points]

    def values(name: str, times: float = 1.0) -> list[float]:
        return [point[name] * times for point in points]

    queues = f"{points[0]['queues']:,.0f} mirrored queues"
    _panel(next(panels), "TCP connections of all nodes", [("N (N − 1)", nodes, values("connections"))], True)
    _panel(next(panels), "Idle: bytes/s that a node writes",
           [("a node", nodes, values("idle_bytes")), ("leader", nodes, values("idle_leader_bytes")),
            (f"a node, {queues}", nodes, values("laden_bytes"))])  # fmt: skip
    _panel(next(panels), "Idle: % of a processor",
           [("a node", nodes, values("idle_busy", 100)),
            ("leader", nodes, values("idle_leader_busy", 100))])  # fmt: skip
    _panel(next(panels), "Declares a second, 60 at a time",
           [("without mirrors", nodes, values("plain_per_s")),
            ("three members", nodes, values("mirrored_per_s"))])  # fmt: skip
    _panel(next(panels), f"Copies a node, {queues}",
           [("mean", nodes, values("copies_mean")), ("most", nodes, values("copies_max"))])  # fmt: skip
    members = [round(point["members"]) for point in found["traffic"]]
    _panel(next(panels), "Millions of messages/s, all nodes (calculated)",
           [(f"{one} member{'s' if one > 1 else ''}", [n for n in NODES if n >= one],
             [capacity(n, one, found["traffic"]) / 1e6 for n in NODES if n >= one]) for one in members])  # fmt: skip
    for axes in figure.axes:
        axes.set_xlabel("nodes", fontsize=9)
    return figure


def _queues(found: Found) -> Figure:
    """Plots what depends on the number of queues."""
    figure = Figure(figsize=(13, 3.8), layout="constrained")
    first, second, third = figure.subplots(1, 3)
    points = found["metadata"]
    queues = [point["queues"] for point in points]
    _panel(first, "Metadata: bytes a queue",
           [("memory", queues, [point["memory_bytes"] / point["queues"] for point in points]),
            ("snapshot", queues, [point["snapshot_bytes"] / point["queues"] for point in points])])  # fmt: skip
    _panel(second, "Metadata: seconds",
           [("snapshot is written", queues, [point["snapshot_s"] for point in points]),
            ("snapshot is read", queues, [point["restore_s"] for point in points])], True)  # fmt: skip
    lost = sorted((point for point in found["clusters"] if point["nodes"] == NODES[0]), key=lambda one: one["queues"])
    masters = [point["lost_masters"] for point in lost]
    _panel(third, "One of three nodes is killed: seconds",
           [("until all is served", masters, [point["served_s"] for point in lost]),
            ("a processor is busy", masters, [point["settled_busy_s"] for point in lost]),
            ("longest pass", masters, [point["longest_s"] for point in lost])], True)  # fmt: skip
    for axes in (first, second, third):
        axes.set_xscale("log")
        axes.set_xlabel("masters lost" if axes is third else "queues", fontsize=9)
    return figure


def _panel(axes: Axes, title: str, curves: Sequence[Curve], logarithmic: bool = False) -> None:
    plain_axes(axes)
    axes.set_title(title, fontsize=10)
    axes.tick_params(labelsize=8)
    for (label, xs, ys), colour in zip(curves, COLOURS, strict=False):
        axes.plot(xs, ys, marker="o", markersize=4, color=colour, label=label)
    if logarithmic:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)
