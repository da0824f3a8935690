"""The plan of a run: steps of clients and faults, drawn from the seed before anything begins.

Because they are drawn in advance, some can be left out without changing the others. Every fault says how long it lasts,
so leaving one out leaves no other without its end.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from leveret.metadata.rebalancing import Schedule
from leveret.metadata.rules.partition_handling import PartitionHandling, from_json
from simulation.clients.client import Step
from simulation.features.broker_features import (
    DELAYED_QUEUE,
    SPECIAL_RATE,
    draw_special,
    limit_deliveries,
    turn_special,
)
from simulation.features.queue_features import DEAD_LETTER_QUEUE, Features, draw_extras, draw_features
from simulation.scenarios.detached import BEFORE_S, DRAWN, QUIET_S, SUNDERED
from simulation.scenarios.drained import DRAINED_FAULTS, draw_drain
from simulation.scenarios.line_faults import draw_line_faults
from simulation.scenarios.paired import NO_PROOFS, PAIRED_FAULTS, Proofs, draw_proofs
from simulation.scenarios.partitioned import STEADFAST, STRATEGY_FAULTS, draw_handling, draw_sever
from simulation.scenarios.rebalanced import REBALANCED_FAULTS, draw_rebalance, draw_schedule
from simulation.scenarios.resource_faults import AILING_FAULTS, draw_ailing
from simulation.scenarios.spooled import SPOOLED_FAULTS, draw_ambush, draw_keeping, draw_tightening
from simulation.scenarios.witnessed import OF_ANY, WITNESSED_FAULTS, draw_deposal, draw_loss, draw_relief

STEPS: Final = 120
CLIENTS: Final = 4
DURABLE: Final = 3
VOLATILE: Final = 3
# Hours in which mirrors may be synchronised. Runs begin at 22:13:20, by the nodes' clocks, and last some minutes.
HOURS: Final = ("22:00-22:14", "22:14-22:15", "22:15-06:00", "06:00-22:00", "06:00-22:14,22:15-22:17")
STEP_S: Final = 0.25  # Average time between two steps.

CLIENT_STEPS: Final = (
    ("publish", 30),
    ("consume", 12),
    ("prove", 10),
    ("get", 7),
    ("declare", 6),
    ("look", 4),
    ("cancel", 3),
    ("close_channel", 3),
    ("delete", 3),
    ("bind", 4),
    ("exchange", 2),
    ("peek", 2),
    ("purge", 1),
    ("go", 4),
    ("tour", 3),
    ("drop", 3),
    ("deafen", 2),
)
ALONE_FAULTS: Final = (
    ("kill", 3),
    ("power", 4),
    ("terminate", 3),
    ("strike", 5),
    ("reset", 3),
    ("pause", 2),
    ("slow_disk", 2),
    ("fill", 1),
    ("fail_sync", 1),
    ("skew", 1),
    ("cut_client", 2),
)
TOGETHER_FAULTS: Final = (
    *ALONE_FAULTS,
    ("power_all", 1),
    ("part", 4),
    ("cut_one_way", 4),
    ("isolate", 4),
    ("slow_link", 2),
    ("reset_links", 3),
    ("kill_leader", 3),
    ("wipe", 2),
    ("restart_app", 2),
    ("move", 4),
)
# With mirrored queues: faults of masters, of several nodes at once, and changes of policies.
MIRRORED_FAULTS: Final = (
    ("kill", 2),
    ("power", 3),
    ("terminate", 3),
    ("strike", 5),
    ("pause", 3),
    ("slow_disk", 2),
    ("fill", 1),
    ("fail_sync", 1),
    ("reset", 1),
    ("skew", 1),
    ("cut_client", 1),
    ("part", 3),
    ("cut_one_way", 3),
    ("isolate", 3),
    ("slow_link", 2),
    ("reset_links", 3),
    ("kill_leader", 2),
    ("wipe", 4),
    ("restart_app", 2),
    ("move", 2),
    ("power_all", 1),
    ("power_some", 3),
    ("fell_master", 7),
    ("policy", 6),
    ("hand_over", 5),
    ("order_sync", 2),
)
# With all kinds of policies and queues: steps that only they make possible, and faults in the middle of them.
VARIED_FAULTS: Final = (
    *MIRRORED_FAULTS,
    ("force", 10),
    ("interrupt", 12),
    ("stop_some", 3),
    ("slow_link", 3),
)


@dataclass(frozen=True)
class Plan:
    """A run, as given by its command line."""

    seed: int
    nodes: int = 3
    steps: int = STEPS
    without: tuple[int, ...] = ()
    noise: int = 0  # Other delays for the same steps.
    mirrored: bool = False  # Queues are mirrored, by policies that change.
    varied: bool = False  # Policies have all keys; some queues are quorum queues.
    featured: bool = False  # Queues have features such as TTLs: see `features.queue_features`.
    special: bool = False  # There are streams, delays, transactions and limits: see `features.broker_features`.
    strategies: bool = False  # Nodes handle partitions in all ways: see `scenarios.partitioned`.
    spooled: bool = False  # Nodes serve clients in a partition: see `leveret.broker.remote.store_and_forward`.
    rebalanced: bool = False  # Queues are moved: see `scenarios.rebalanced`.
    ailing: bool = False  # Resources of machines fail: see `scenarios.resource_faults`.
    drained: bool = False  # Nodes are drained: see `scenarios.drained`.
    paired: bool = False  # Two nodes, one of which is often lost: see `scenarios.paired`.
    witnessed: bool = False  # Two nodes and a witness: see `scenarios.witnessed`.
    links: str = ""  # "shovels" or "federation": what moves messages beside the clients. See `simulation.links`.
    two_clusters: bool = False  # That leads from one cluster to another, and there are no other clients.

    def __post_init__(self) -> None:
        # No command line makes such a plan, so its failures could not be replayed.
        assert self.featured or not self.special, "a special run is a featured one, too"

    def command(self) -> str:
        words = f"python -m simulation --seed {self.seed} --nodes {self.nodes} --steps {self.steps}"
        words += f" --noise {self.noise}" if self.noise else ""
        words += " --varied" if self.varied else " --mirrored" if self.mirrored else ""
        words += " --special" if self.special else " --featured" if self.featured else ""
        words += " --spooled" if self.spooled else ""
        words += " --strategies" if self.strategies else ""
        words += " --rebalanced" if self.rebalanced else ""
        words += " --ailing" if self.ailing else ""
        words += " --drained" if self.drained else ""
        words += " --paired" if self.paired else ""
        words += " --witnessed" if self.witnessed else ""
        words += f" --{self.links}" if self.links else ""
        words += " --two-clusters" if self.two_clusters else ""
        return f"{words} --without {ranges(self.without)}" if self.without else words

    def draw(self) -> list[Step]:
        """Returns all steps, including those that are left out."""
        if self.two_clusters:
            return draw_line_faults(self.seed, self.steps, self.links)
        kind = "special " if self.special else "featured " if self.featured else ""
        kind += "varied " if self.varied else "mirrored " if self.mirrored else ""
        kind += "strategies " if self.strategies else ""
        kind += "spooled " if self.spooled else ""
        kind += "rebalanced " if self.rebalanced else ""
        kind += "ailing " if self.ailing else ""
        kind += "drained " if self.drained else ""
        kind += "paired " if self.paired else ""
        kind += "witnessed " if self.witnessed else ""
        rng = random.Random(f"{self.seed}/{kind}plan/{self.nodes}")
        faults: tuple[tuple[str, int], ...] = TOGETHER_FAULTS
        if self.mirrored:
            faults = VARIED_FAULTS if self.varied else MIRRORED_FAULTS
        elif self.nodes == 1:
            faults = ALONE_FAULTS
        if self.spooled:
            faults = (*SPOOLED_FAULTS, *(faults if self.mirrored else ()))
        if self.strategies and self.nodes > 1:
            faults = (*faults, *STRATEGY_FAULTS)
        if self.rebalanced:
            faults = (*faults, *REBALANCED_FAULTS)
        if self.ailing:
            faults = (*faults, *AILING_FAULTS)
        if self.drained:
            faults = (*faults, *DRAINED_FAULTS)
        if self.paired:
            faults = (*faults, *PAIRED_FAULTS)
        if self.witnessed:
            faults = (*faults, *WITNESSED_FAULTS)
        is_harsh = self.mirrored or self.spooled or self.ailing
        fault_rate = rng.choice((0.05, 0.1, 0.2, 0.3) if is_harsh else (0.0, 0.05, 0.1, 0.1, 0.2))
        pace = rng.choice((0.2, 1.0, 1.0, 3.0))
        steps, at = [], 0.0
        for number in range(1, self.steps + 1):
            at += rng.random() * 2 * STEP_S * pace
            if self.paired and self.spooled and number in SUNDERED:
                what, arguments = "sunder", draw_sunder(rng, self.nodes)
            elif rng.random() < fault_rate:
                what = pick(rng, faults)
                arguments = draw_fault(rng, what, self.places(what), self.varied)
                if self.special:
                    turn_special(rng, what, arguments)
            elif self.special and rng.random() < SPECIAL_RATE:
                what, arguments = draw_special(rng, self.nodes)
                arguments["client"] = rng.randrange(CLIENTS)
            else:
                what = pick(rng, CLIENT_STEPS)
                arguments = {"client": rng.randrange(CLIENTS), **draw_client(rng, what, self.nodes)}
                if self.featured:
                    draw_featured(rng, what, arguments)
            steps.append(Step(number, at, what, arguments))
        return steps

    def places(self, fault: str) -> int:
        """Returns how many machines may have such a fault."""
        return self.nodes + 1 if self.witnessed and fault in OF_ANY else self.nodes

    def proofs(self) -> Proofs:
        """Returns the proofs of a node's death in this run."""
        return draw_proofs(self.seed) if self.paired else NO_PROOFS

    @property
    def pauses(self) -> bool:
        """Returns whether nodes may pause. Half of the runs with a witness use the default."""
        return self.strategies or (self.witnessed and not self.spooled and self.seed % 2 > 0)

    def handling(self) -> dict[str, Any]:
        """Returns the nodes' configured partition handling, in a run with strategies."""
        if self.witnessed and not self.strategies and not self.spooled:
            return {"strategy": "pause_minority"}
        if self.spooled:
            return draw_keeping(random.Random(f"{self.seed}/spooled"))
        return draw_handling(random.Random(f"{self.seed}/handling/{self.nodes}"), self.nodes)

    def partition_handling(self) -> PartitionHandling:
        return from_json(self.handling()) if self.pauses or self.spooled else STEADFAST

    def schedule(self) -> Schedule:
        """Returns when the nodes rebalance queues by themselves."""
        return draw_schedule(self.seed) if self.rebalanced else Schedule()

    def opening(self) -> tuple[int, dict[str, Any]]:
        """Returns how many of the durable queues are declared before the first policy, and that policy."""
        rng = random.Random(f"{self.seed}/opening/{self.nodes}")
        return rng.randrange(DURABLE + 1), draw_policy(rng, self.nodes, self.varied)

    def quorum(self) -> frozenset[str]:
        """Returns the durable queues that are quorum queues; with features, these decide it."""
        rng = random.Random(f"{self.seed}/quorum/{self.nodes}")
        chance = rng.choice((0.0, 0.0, 0.3, 0.6)) if self.varied and not self.featured else 0.0
        return frozenset(f"d{number}" for number in range(DURABLE) if rng.random() < chance)

    def queues(self) -> list[str]:
        """Returns the queues that are declared at the beginning, and stay."""
        names = [f"d{number}" for number in range(DURABLE)]
        return [DEAD_LETTER_QUEUE, *([DELAYED_QUEUE] if self.special else ()), *names] if self.featured else names

    def features(self) -> dict[str, Features]:
        """Returns the features of these queues, in a run with features."""
        if not self.featured:
            return {}
        rng = random.Random(f"{self.seed}/features/{self.nodes}")
        # Without mirrors, the ledger expects a queue where it was declared, which a quorum queue is not.
        found = draw_features(rng, DURABLE, self.mirrored or self.nodes == 1, not self.mirrored)
        return limit_deliveries(rng, found) if self.special else found

    def taken(self) -> list[Step]:
        left_out = set(self.without)
        return [step for step in self.draw() if step.number not in left_out]


def pick(rng: random.Random, weighted: tuple[tuple[str, int], ...]) -> str:
    return rng.choices([name for name, _ in weighted], [weight for _, weight in weighted])[0]


def durable(rng: random.Random) -> str:
    return f"d{rng.randrange(DURABLE)}"


def volatile(rng: random.Random) -> str:
    return f"v{rng.randrange(VOLATILE)}"


def any_queue(rng: random.Random) -> str:
    return durable(rng) if rng.random() < 0.8 else volatile(rng)


def draw_client(rng: random.Random, what: str, nodes: int) -> dict[str, Any]:
    if what == "publish":
        return {
            "queue": any_queue(rng),
            "count": rng.choice((1, 1, 2, 5, 20)),
            "padding": rng.choice((0, 0, 10, 100, 1_000, 5_000)),
            "persistent": rng.random() < 0.9,
            "wait": rng.random() < 0.6,
        }
    if what == "consume":
        queue = any_queue(rng)
        return {
            "queue": queue,
            "prefetch": rng.choice((0, 1, 3, 10)),
            "no_ack": queue[0] == "v" and rng.random() < 0.5,
            "style": rng.choice(("ack", "ack", "multiple", "mixed", "late", "hold")),
        }
    if what == "get":
        queue = any_queue(rng)
        return {
            "queue": queue,
            "count": rng.randrange(1, 5),
            "no_ack": queue[0] == "v" and rng.random() < 0.5,
            "how": rng.choice(("ack", "ack", "requeue")),
        }
    if what in ("prove", "cancel", "close_channel"):
        return {"which": rng.randrange(3)}
    if what == "declare":
        if rng.random() < 0.3:
            return {"queue": "x", "durable": False}
        return {"queue": volatile(rng), "durable": rng.random() < 0.8}
    if what in ("delete", "purge"):
        return {"queue": volatile(rng)}
    if what == "look":
        return {"queue": durable(rng)}
    if what == "bind":
        key = rng.choice(("a", "b", "#"))
        return {"queue": any_queue(rng), "exchange": "t0", "key": key, "unbind": rng.random() < 0.3}
    if what == "exchange":
        return {"exchange": rng.choice(("t0", "t1")), "delete": rng.random() < 0.3}
    if what == "peek":
        return {"other": rng.randrange(CLIENTS)}
    if what in ("go", "tour"):
        return {"node": rng.randrange(nodes)}
    if what == "deafen":
        return {"seconds": round(rng.random() * 3, 3)}
    return {}


def draw_featured(rng: random.Random, what: str, arguments: dict[str, Any]) -> None:
    """Draws other steps of a client, in a run with features."""
    if what in ("consume", "get", "look") and rng.random() < 0.2:
        arguments |= {"queue": DEAD_LETTER_QUEUE} | ({"no_ack": False} if "no_ack" in arguments else {})
    if what == "publish":
        arguments |= draw_extras(rng)
        if arguments["queue"][0] == "v":
            arguments["via"] = ""  # It may not be bound to anything.
    elif what == "consume" and rng.random() < 0.4:
        arguments["priority"] = rng.randrange(-2, 3)
    elif what == "get" and rng.random() < 0.3:
        arguments["how"] = "reject"
    elif what == "declare" and rng.random() < 0.5:
        arguments["arguments"] = {"x-expires": rng.choice((500, 5_000))}


def draw_policy(rng: random.Random, nodes: int, varied: bool) -> dict[str, Any]:
    """Draws the arguments of a step that sets the policy; without a definition, the policy is cleared."""
    mode = rng.choice(("all", "all", "exactly", "exactly", "nodes", None))
    definition: dict[str, Any] = {"ha-mode": mode, "ha-sync-mode": rng.choice(("automatic", "automatic", "manual"))}
    if mode == "exactly":
        definition["ha-params"] = rng.choice((1, 2, 2, 3))
    elif mode == "nodes":
        definition["ha-params"] = [f"leveret@n{one + 1}" for one in rng.sample(range(nodes), rng.randrange(1, nodes))]
    if varied and mode:
        definition |= draw_rules(rng)
        # Other rng: earlier seeds give the same runs.
        draw_copying(random.Random(hash(rng.getstate()[1])), definition)
    return {"pattern": rng.choice(("", "^d", "^d[01]", "^[dv]")), "definition": definition if mode else None}


def draw_rules(rng: random.Random) -> dict[str, Any]:
    """Draws further keys of a policy."""
    rules: dict[str, Any] = {"ha-sync-mode": "manual"} if rng.random() < 0.5 else {}
    if rng.random() < 0.4:
        rules["ha-replication"] = "async"
        if rng.random() < 0.3:
            rules["ha-replication-window"] = {"messages": rng.choice((1, 5, 50))}
    for key in ("ha-promote-on-failure", "ha-promote-on-shutdown"):
        if rng.random() < 0.4:
            rules[key] = rng.choice(("always", "always", "always", "when-synced"))
    if rng.random() < 0.2:
        rules["ha-sync-strategy"] = rng.choice(("full", "incremental"))
    if rng.random() < 0.2:
        rules["ha-sync-batch-size"] = rng.choice((1, 3, 100))
    return rules


def draw_copying(rng: random.Random, definition: dict[str, Any]) -> None:
    """Draws keys about synchronisation."""
    if rng.random() < 0.15:
        definition["ha-sync-strategy"] = "event"
    if rng.random() < 0.25:
        definition["ha-sync-mode"] = "automatic"
        hours = {"hours": rng.choice(HOURS)}
        definition["ha-replication-window"] = definition.get("ha-replication-window", {}) | hours


def draw_interruption(rng: random.Random, nodes: int) -> dict[str, Any]:
    """Draws a change of views, after which the master of a queue dies."""
    by = rng.choice(("burst", "burst", "burst", "hand_over", "policy", "policy", "order_sync", "force", "fell_master"))
    first = draw_fault(rng, by, nodes, True)
    how = rng.choice(("kill", "power", "power", "isolate", "pause"))
    seconds = round(rng.choice((0.01, 0.5, 2.0, 8.0)) * (0.5 + rng.random()), 3)
    delay = round(rng.choice((0.0, 0.002, 0.01, 0.05, 0.3)) * rng.random(), 6)
    delay += 0.1 * rng.random() if by == "burst" else 0.0
    queue = first.get("queue", durable(rng))
    return {"by": by, "first": first, "queue": queue, "delay": delay, "how": how, "seconds": seconds}


def draw_fault(rng: random.Random, what: str, nodes: int, varied: bool) -> dict[str, Any]:
    node, seconds = rng.randrange(nodes), round(rng.choice((0.01, 0.5, 2.0, 8.0)) * (0.5 + rng.random()), 3)
    if what in ("power_all", "kill_leader"):
        return {"seconds": seconds}
    if what == "lose":
        return draw_loss(rng, nodes)
    if what == "relieve":
        return draw_relief(rng)
    if what == "depose":
        return draw_deposal(rng, durable(rng))
    if what == "abandon":
        return {"cut": round(6.0 + 6.0 * rng.random(), 3), "seconds": seconds}
    if what in ("rebalance", "appoint", "unsettle"):
        return draw_rebalance(rng, what, any_queue(rng), nodes)
    if what in ("drain", "empty"):
        return draw_drain(rng, what, nodes)
    if what in ("stall", "press", "cramp", "leap", "forsake"):
        return draw_ailing(rng, what, node)
    if what == "ambush":
        return draw_ambush(rng)
    if what == "tighten":
        return draw_tightening(rng)
    if what == "sever":
        return draw_sever(rng, nodes)
    if what == "handling":
        return {"value": draw_handling(rng, nodes) if rng.random() < 0.85 else None}
    if what == "policy":
        return draw_policy(rng, nodes, varied)
    if what == "interrupt":
        return draw_interruption(rng, nodes)
    if what == "force":
        return {"queue": any_queue(rng), "node": node, "insists": rng.random() < 0.6}
    if what == "burst":
        return {"queue": durable(rng), "count": rng.choice((5, 20, 40)), "padding": rng.choice((0, 100, 2_000))}
    if what == "stop_some":
        return {"some": sorted(rng.sample(range(nodes), rng.randrange(1, nodes + 1))), "seconds": seconds}
    if what in ("hand_over", "order_sync"):
        return {"queue": any_queue(rng), "node": node, "wanted": rng.random() < 0.8}
    if what == "fell_master":
        how = rng.choice(("kill", "power", "pause", "isolate", "terminate"))
        return {"queue": any_queue(rng), "how": how, "seconds": seconds}
    if what == "power_some":
        some = sorted(rng.sample(range(nodes), rng.randrange(2, nodes + 1)))
        return {"some": some, "power": rng.random() < 0.7, "seconds": seconds}
    if what == "strike":
        return {"node": node, "changes": rng.randrange(12), "power": rng.random() < 0.7}
    if what in ("part", "cut_one_way", "slow_link", "reset_links"):
        other = rng.choice([one for one in range(nodes) if one != node])
        return {"node": node, "other": other, "seconds": seconds}
    if what == "move":
        return {"queue": durable(rng), "node": node}
    if what == "reset":
        return {"rate": rng.choice((0.2, 0.5, 1.0))}
    if what == "fill":
        return {"node": node, "seconds": seconds, "left": rng.randrange(20_000)}
    if what == "skew":
        return {"node": node, "ms": rng.randrange(-10_000, 10_000)}
    if what == "cut_client":
        return {"client": rng.randrange(CLIENTS), "node": node, "seconds": seconds, "back": rng.random() < 0.5}
    return {"node": node, "seconds": seconds}


def draw_sunder(rng: random.Random, nodes: int) -> dict[str, Any]:
    """Draws a long cut between two nodes, in the last part of which clients do something at both."""
    lasts_s = round(4.0 + 16.0 * rng.random(), 3)
    publish = {"count": 8, "padding": 10, "persistent": True, "wait": False}
    steps: list[tuple[float, str, dict[str, Any]]] = [
        (BEFORE_S - 1.5 * rng.random(), "publish", {"client": number, "queue": f"d{number}", **publish})
        for number in range(DURABLE)
    ]
    begins_s = BEFORE_S + QUIET_S - 2.0
    steps += [(begins_s, "go", {"client": client, "node": client % nodes}) for client in range(CLIENTS)]
    for _ in range(rng.randrange(8, 30)):
        what = pick(rng, tuple((one, 1) for one in DRAWN))
        delay = round(begins_s + rng.random() * (lasts_s + 2.0), 3)
        steps.append((delay, what, {"client": rng.randrange(CLIENTS), **draw_client(rng, what, nodes)}))
    steps += draw_spooled(random.Random(hash(rng.getstate()[1])), begins_s, lasts_s)
    return {"seconds": BEFORE_S + QUIET_S + lasts_s, "steps": steps}


def draw_spooled(rng: random.Random, begins_s: float, lasts_s: float) -> list[tuple[float, str, dict[str, Any]]]:
    """Clients at each node publish to the same queues that others consume there."""
    steps: list[tuple[float, str, dict[str, Any]]] = []
    for client in range(CLIENTS):
        for _ in range(rng.randrange(4)):
            queue, delay = durable(rng), begins_s + 2.0 + rng.random() * lasts_s
            style, how = rng.choice(("ack", "multiple", "mixed", "late", "hold")), rng.choice(("ack", "requeue"))
            who = {"client": client, "queue": queue}
            publish = {**who, "count": rng.choice((1, 3, 8)), "padding": 10, "persistent": True}
            consume = {**who, "prefetch": rng.choice((0, 1, 3)), "no_ack": False, "style": style}
            get = {**who, "count": 2, "no_ack": False, "how": how}
            what, arguments = ("consume", consume) if rng.random() < 0.7 else ("get", get)
            steps += [
                (delay, "publish", {**publish, "wait": rng.random() < 0.5}),
                (delay + 0.5, what, arguments),
                (delay + 1.5, "publish", {**publish, "wait": True}),
                (delay + 2.5, "prove", {"client": client, "which": rng.randrange(3)}),
            ]
    return steps


def ranges(numbers: Iterable[int]) -> str:
    """Parses "3,7-12"."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def from_ranges(text: str) -> tuple[int, ...]:
    numbers: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return tuple(numbers)
