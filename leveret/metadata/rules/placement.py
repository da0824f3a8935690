"""The nodes on which the copies of a mirrored queue should be.

`ha-mode` has RabbitMQ's values: `all` nodes of the cluster; `exactly` so many (`ha-params`), the master among them; or
the `nodes` that are named. The result is the ring that the queue's master works towards. The master, which alone knows
which mirrors are in sync, never gives up a copy before another has taken its place.

- Nodes that are down stay in the ring of `all` and of `nodes`, because a mirror that returns to its ring keeps what it
  has and fetches only what it lacks. With `exactly`, another node takes the place of one that is down, if there is one.
- A quorum queue keeps the members it has, running or not, and grows until it has as many as it asked for.
- `nodes` of which none is a member of the cluster: the queue stays where it is, as in RabbitMQ.
- For `exactly`, new places are taken by the running nodes with the fewest copies; by those in maintenance last.
- `ha-spread` names a label of nodes (`node.label.zone = a`; all have `node` and `host`, by their names). With it,
  copies that `exactly` or a quorum queue asks for are at nodes with different values of that label, as far as there are
  such: that comes first, then nodes that have a copy already, then those with few. Nodes without the label count as one
  place.
- Nodes with the same label `machine` are processes of one machine (`leveret server --processes`). No two of them have a
  copy of a queue, whatever its mode, since they would be lost together: `all` is one copy on each machine, on the node
  with the fewest. Only `nodes` that are named, and an operator by hand, can have two there.

A queue that moves to another node (`moving_to`) gets a copy there, in addition to the others, until that node is its
master: see `leveret.broker.mirrors.member_changes`.

All functions here depend on their arguments only, so that every node gets the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from leveret.base.json_values import Json
from leveret.metadata.rules.ha_policy import QUORUM

if TYPE_CHECKING:
    from leveret.metadata.model.records import QueueSpec
    from leveret.metadata.store import Metadata

LINKS: Final = "queue-mirror-links"  # A component: its parameters name mirrors that an operator added by hand.
JOBS: Final = "leveret-job"  # A component: its parameters are the last results of jobs.
MOVES: Final = "queue-moves"  # A component: its parameters name the nodes to which queues are moving.
OF_QUEUES: Final = (LINKS, MOVES)  # Components whose parameters are removed with the queue of their name.
INTERNAL: Final = (LINKS, JOBS, MOVES)  # Components that are not exported with definitions.
LABELS: Final = "node_labels:"  # Followed by the name of a node: the global parameter with its labels.
REBALANCE: Final = "rebalance_state"  # The global parameter with the recent moves of queues.
SPREAD: Final = "ha-spread"
MACHINE: Final = "machine"  # The label that processes of one machine share.

Labels = Mapping[str, Mapping[str, str]]  # By node name.


def wanted_ring(
    definition: Mapping[str, Json],
    master: str,
    ring: Sequence[str],
    members: Collection[str],
    running: Collection[str],
    loads: Mapping[str, int],
    labels: Labels | None = None,
    away: Collection[str] = (),
) -> tuple[str, ...] | None:
    """Return the members that a queue should have, its master first; None: it should not be mirrored.

    `away`: nodes that are out of service (`model.maintenance_mark`), which are chosen last.
    """
    mode, params = definition.get("ha-mode"), definition.get("ha-params")
    label = definition.get(SPREAD)
    zones = _zones(label, members, labels or {}) if isinstance(label, str) else {}
    machines = {name: found for name in members if (found := (labels or {}).get(name, {}).get(MACHINE))}
    kept = [name for name in ring if name in members]
    if mode == "all":
        others = sorted(set(members) - set(kept))
        if machines:
            kept = _apart([master, *(name for name in kept if name != master)], machines)
            others.sort(key=lambda name: (name not in running, *_order(loads, away)(name)))
        wanted = _apart([*kept, *others], machines)
    elif mode == "exactly" and isinstance(params, int):
        wanted = _exactly(params, master, kept, running, _order(loads, away), zones, machines)
    elif mode == QUORUM and isinstance(params, int):
        others = sorted(set(running) - set(kept), key=_order(loads, away))
        wanted = _spread(params, kept, others, zones, machines)
    elif mode == "nodes" and isinstance(params, list):
        named = [str(name) for name in params if name in members]
        wanted = [*(name for name in kept if name in named), *(name for name in named if name not in kept)]
        if not wanted:
            wanted = kept
    else:
        return None
    return tuple(wanted)


def _exactly(
    count: int,
    master: str,
    kept: Sequence[str],
    running: Collection[str],
    order: Callable[[str], tuple[bool, int, str]],
    zones: Mapping[str, str],
    machines: Mapping[str, str],
) -> list[str]:
    """Return the master, then running nodes with a copy, then others; nodes that are down only if there are no others.
    """
    have = [name for name in kept if name in running and name != master]
    others = sorted(set(running) - set(kept) - {master}, key=order)
    down = [name for name in kept if name not in running and name != master]
    chosen = _spread(count, [master], [*have, *others], zones, machines)
    return _apart([*chosen, *down], machines)[: max(count, len(chosen))]


def _order(loads: Mapping[str, int], away: Collection[str]) -> Callable[[str], tuple[bool, int, str]]:
    return lambda name: (name in away, loads.get(name, 0), name)


def _zones(label: str, members: Collection[str], labels: Labels) -> dict[str, str]:
    return {name: labels.get(name, {}).get(label, "") for name in members}


def _apart(names: Sequence[str], machines: Mapping[str, str]) -> list[str]:
    """Return the nodes without those that share a machine with one before them."""
    taken: set[str] = set()
    apart = []
    for name in names:
        machine = machines.get(name)
        if machine is None or machine not in taken:
            apart.append(name)
            taken.update(() if machine is None else (machine,))
    return apart


def _spread(
    count: int,
    chosen: Sequence[str],
    others: Sequence[str],
    zones: Mapping[str, str],
    machines: Mapping[str, str],
) -> list[str]:
    """Return the chosen nodes and as many others as are missing: each from the zone with the fewest so far, and among
    those the first one given."""
    wanted, left = list(chosen), list(others)
    while left and len(wanted) < count:
        if machines:
            used = {machines.get(name) for name in wanted} - {None}
            left = [name for name in left if machines.get(name) not in used]
            if not left:
                break
        taken = [zones.get(name) for name in wanted]
        best = min(left, key=lambda name: taken.count(zones.get(name)) if zones else 0)
        left.remove(best)
        wanted.append(best)
    return wanted


def locate(strategy: str, here: str, running: Collection[str], masters: Mapping[str, int], draw: int) -> str:
    """Return the node for a new queue's master: RabbitMQ's `queue-master-locator`. `draw`: any random number."""
    if strategy == "min-masters":
        return min(sorted(running), key=lambda name: (masters.get(name, 0), name != here))
    if strategy == "random":
        return sorted(running)[draw % len(running)]
    return here


def extra_members(metadata: Metadata, vhost: str, name: str) -> list[str]:
    """Return the nodes on which an operator wants a mirror of a queue, whatever its policy says.

    They belong to the queue and not to its name: a queue declared later under the same name has another id and none.
    """
    value, spec = metadata.parameters.get((LINKS, vhost, name)), metadata.queues.get((vhost, name))
    nodes = value.get("nodes") if isinstance(value, dict) and is_about(value, spec) else None
    return [str(one) for one in nodes] if isinstance(nodes, list) else []


def is_about(value: Json, spec: QueueSpec | None) -> bool:
    """Return whether a parameter is about this queue, and not about an earlier one of the same name."""
    return spec is not None and isinstance(value, dict) and value.get("queue") == spec.id


def moving_to(metadata: Metadata, spec: QueueSpec) -> str | None:
    """Return the node to which a queue is moving."""
    value = metadata.parameters.get((MOVES, spec.vhost, spec.name))
    return str(value.get("to")) if isinstance(value, dict) and is_about(value, spec) else None


def labels_of(metadata: Metadata, node: str) -> dict[str, str]:
    """Return a node's labels: its name, its host, and those of its configuration as of its last start."""
    return {"node": node, "host": node.partition("@")[2], **own_labels(metadata, node)}


def own_labels(metadata: Metadata, node: str) -> dict[str, str]:
    found = metadata.global_parameters.get(LABELS + node)
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def renamed_extra(metadata: Metadata, old: str, new: str) -> Iterator[tuple[tuple[str, str, str], Json]]:
    """Yield the parameters that name a node, with its new name in their values."""
    for key, value in metadata.parameters.items():
        nodes = value.get("nodes") if key[0] == LINKS and isinstance(value, dict) else None
        if isinstance(value, dict) and isinstance(nodes, list) and old in nodes:
            yield key, {**value, "nodes": [new if name == old else name for name in nodes]}


def with_extra(
    wanted: tuple[str, ...] | None, extra: Collection[str], master: str, members: Collection[str]
) -> tuple[str, ...] | None:
    """Return the members that a policy wants, and those that an operator added."""
    added = [name for name in extra if name in members and name not in (wanted or (master,))]
    return (*(wanted or (master,)), *added) if added else wanted
