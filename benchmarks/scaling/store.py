"""Measures metadata and placement with more queues and nodes: the store, the choice of nodes, the plan of moves.

Nothing is modelled here. Each function runs the pure code that every node runs, and measures its processor time and the
memory that Python reports. A queue is mirrored over three nodes and has one binding; names have usual lengths.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from benchmarks.single.growth import Point
from leveret.base.json_values import Json
from leveret.metadata.command_codec import encode_command
from leveret.metadata.model.commands import AddVhost, Bind, ChangeView, Command, DeclareExchange, DeclareQueue
from leveret.metadata.model.view import View
from leveret.metadata.rebalancing import NodeState, QueueState, Settings, balance
from leveret.metadata.rules.placement import locate, wanted_ring
from leveret.metadata.store import Metadata

COPIES: Final = 3
LOCATORS: Final = ("client-local", "min-masters", "random")
VHOST: Final = "/"
EXCHANGE: Final = "orders"
HA: Final[dict[str, Json]] = {"ha-mode": "exactly", "ha-params": COPIES}
MOVES_MAX: Final = 1_000_000


def node_names(count: int) -> list[str]:
    return [f"leveret@host-{number:02}" for number in range(1, count + 1)]


def queue_name(number: int) -> str:
    return f"orders.customer.{number:06}"


# -- The metadata store ---------------------------------------------------------------------------------------------


def commands(count: int, nodes: Sequence[str]) -> tuple[list[Command], list[Command], list[Command]]:
    """Returns the declarations of that many queues, their bindings, and a change of the view of each: another
    master."""
    declared, bound, changed = list[Command](), list[Command](), list[Command]()
    for number in range(count):
        name = queue_name(number)
        ring = tuple(nodes[(number + step) % len(nodes)] for step in range(COPIES))
        in_sync = tuple((member, f"{zlib.crc32(member.encode()):032x}") for member in ring)
        declared.append(DeclareQueue(VHOST, name, node=ring[0], view=View(1, 1, ring[0], ring, in_sync)))
        bound.append(Bind(VHOST, EXCHANGE, "queue", name, f"customer.{number:06}"))
        changed.append(ChangeView(VHOST, name, number + 1, View(2, 2, ring[1], ring, in_sync[1:])))
    return declared, bound, changed


def fresh_store() -> Metadata:
    store = Metadata()
    store.apply(AddVhost(VHOST))
    store.apply(DeclareExchange(VHOST, EXCHANGE, "topic"))
    return store


def apply_all(store: Metadata, all_of_them: Iterable[Command]) -> None:
    for command in all_of_them:
        refused = store.apply(command).refused
        assert refused is None, refused


def timed(action: Callable[[], object]) -> float:
    """Returns processor seconds of this thread, without the garbage collector: a node runs it when it is idle."""
    gc.collect()
    gc.disable()
    try:
        began = time.thread_time()
        action()
        return time.thread_time() - began
    finally:
        gc.enable()


def metadata(count: int) -> Point:
    """Returns one point of the curve: that many queues."""
    declared, bound, changed = commands(count, node_names(5))
    store = fresh_store()
    point: Point = {"queues": count}
    for name, some in (("declare", declared), ("bind", bound), ("view", changed)):
        took = timed(lambda some=some: apply_all(store, some))  # type: ignore[misc]
        point[f"{name}_us"] = took / count * 1e6
        point[f"{name}_bytes"] = sum(len(encode_command(one)) for one in some[:100]) / min(count, 100)
    taken = list[bytes]()
    point["snapshot_s"] = timed(lambda: taken.append(store.snapshot()))
    point["snapshot_bytes"] = len(taken[0])
    point["restore_s"] = timed(lambda: Metadata().restore(taken[0]))
    point["memory_bytes"] = _memory(taken[0])
    return point


def _memory(snapshot: bytes) -> float:
    """Returns the memory of a store that was read from its snapshot, in which no name is shared with a command."""
    store = Metadata()
    gc.collect()
    tracemalloc.start()
    try:
        store.restore(snapshot)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


# -- Placement ------------------------------------------------------------------------------------------------------


def placement(nodes: int, queues: int, locator: str) -> Point:
    """Returns masters and copies for each node if clients of all nodes declare in turn, and each choice knows all
    earlier ones."""
    names = node_names(nodes)
    masters, copies = Counter(dict.fromkeys(names, 0)), Counter(dict.fromkeys(names, 0))
    began = time.thread_time()
    for number in range(queues):
        draw = zlib.crc32(queue_name(number).encode())
        master = locate(locator, names[number % nodes], names, masters, draw)
        ring = wanted_ring(HA, master, (master,), names, names, copies)
        assert ring is not None and ring[0] == master
        masters[master] += 1
        copies.update(ring)
    return {
        "nodes": nodes,
        "queues": queues,
        "masters_mean": queues / nodes,
        "masters_max": max(masters.values()),
        "masters_min": min(masters.values()),
        "copies_mean": sum(copies.values()) / nodes,
        "copies_max": max(copies.values()),
        "choice_us": (time.thread_time() - began) / queues * 1e6,
    }


def rebalance(nodes: int, queues: int, mirrored: bool = False) -> Point:
    """Measures the plan after a node was added: how long planning takes, and how many moves it has.

    A queue without mirrors may move anywhere, and the new node gets its share. A mirrored queue can only move to a node
    with a mirror: so here each queue has three copies, spread over all nodes, including the new one.
    """
    names = node_names(nodes)
    states = []
    for number in range(queues):
        master = names[number % (nodes - 1)]
        others = [names[(number * 7 + step) % nodes] for step in range(COPIES)]
        ring = tuple(dict.fromkeys((master, *others)))[:COPIES] if mirrored else None
        states.append(QueueState(number + 1, VHOST, queue_name(number), master, in_sync=ring))
    found = []
    settings = Settings(threshold=0.0, moves_max=MOVES_MAX)
    took = timed(lambda: found.append(balance([NodeState(name) for name in names], states, settings)))
    plan = found[0]
    return {
        "nodes": nodes,
        "queues": queues,
        "moves": len(plan.moves),
        "masters_max": max(plan.after.values()),
        "masters_min": min(plan.after.values()),
        "plan_s": took,
    }
