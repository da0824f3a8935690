"""A network that parts, under load, for each strategy: nodes in namespaces, links cut and healed at random.

    python -m tests.system.partitions.soak --minutes 5 [--seed 7] [--strategy autoheal] [--nodes 3]

Publishers and readers, at nodes on either side, keep books (see `tests.system.mirrors.ledger`): every number that was
confirmed has to be delivered, whatever comes twice has to be marked. That holds for every strategy. In the end all is
healed, all nodes serve, all copies become in sync, and no spool holds anything. The seed decides what is cut when; how
the nodes take it is up to the machine, so a seed is a hint, not a replay.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.members import Member
from tests.support.networks import Archipelago, Network, why_not
from tests.support.servers import until
from tests.system.mirrors.ledger import Ledger
from tests.system.mirrors.rings import await_in_sync, count, declare, mirror

CONFIG = "net_ticktime = 1\ncluster.operation_timeout = 2000"
STRATEGIES = ("pause_minority", "pause_if_all_down", "ignore", "autoheal")
Note = Callable[[str], None]


def set_strategy(nodes: Archipelago, strategy: str) -> None:
    more: dict[str, Any] = {"nodes": None, "recover": None}
    if strategy == "pause_if_all_down":
        more = {"nodes": [nodes[0].name], "recover": "ignore"}
    nodes[0].control("set_partition_handling", strategy=strategy, **more)


def cut(network: Network, rng: random.Random) -> str:
    """Some links, in one of the ways in which networks part. What was done."""
    numbers = list(range(1, network.size + 1))
    one, other = rng.sample(numbers, 2)
    way = rng.choice(("one", "one", "one", "pair", "way", "deaf", "mute", "all"))
    if way == "one":
        network.part([one])
        return f"n{one} is cut off"
    if way == "pair":
        network.cut(one, other)
        return f"n{one} and n{other} are cut from each other"
    if way == "way":
        network.cut_one_way(one, other)
        return f"nothing of n{one} reaches n{other}"
    if way == "all":
        for number in numbers:
            network.part([number])
        return "each is alone"
    for number in numbers:
        if number != one:
            network.cut_one_way(*((number, one) if way == "deaf" else (one, number)))
    return f"n{one} is {way}"


def torment(nodes: Archipelago, rng: random.Random, seconds: float, ledger: Ledger, note: Note) -> None:
    """Cut something, heal it, and again; now and then a node dies meanwhile."""
    network = nodes.network
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while time.monotonic() < deadline:
        ledger.check_so_far()
        note(cut(network, rng))
        pause.wait(rng.choice((0.3, 1.5, 3.0, 5.0)))
        if rng.random() < 0.25:
            note(cut(network, rng))
            pause.wait(rng.choice((0.3, 2.0)))
        victim = rng.choice(nodes.nodes) if rng.random() < 0.25 else None
        if victim is not None:
            note(f"kill {victim.name}")
            victim.kill()
        if rng.random() < 0.5 or victim is None:
            note("heal")
            network.heal()
        if victim is not None:
            pause.wait(rng.choice((0.0, 1.0)))
            note(f"start {victim.name}")
            network.heal()
            victim.spawn()
            victim.wait_until_ready()
        pause.wait(rng.choice((0.2, 1.0, 3.0)))


def spooled(node: Member) -> int:
    """How many messages wait at a node for queues that it could not reach."""
    return sum(row[0] for row in node.control("local_spools", columns=["messages"], after=0)["rows"])


def soak(
    nodes: Archipelago, strategy: str, seed: int, seconds: float, prefix: str = "part", note: Note = lambda text: None
) -> int:
    """How many messages were confirmed. Raises AssertionError."""
    rng = random.Random(seed)
    set_strategy(nodes, strategy)
    mirror(nodes[0], f"{prefix}-all")
    ledger = Ledger(nodes, rng)
    queues = [f"{prefix}-{kind}-{number}" for kind in ("all", "plain") for number in range(len(nodes))]
    for number, queue in enumerate(queues):
        declare(nodes[number % len(nodes)], queue)
        ledger.add(queue, publishers=1, window=10)
    with ledger:
        ledger.await_progress(30)
        torment(nodes, rng, seconds, ledger, note)
        note("mend")
        nodes.network.heal()
        nodes.mend()
        ledger.await_progress(30)
        confirmed = ledger.finish()
        note(f"all was delivered: {ledger.summary()}")
        for queue in queues:
            until(lambda queue=queue: count(nodes[0], queue) == 0, f"{queue} is empty")  # type: ignore[misc]
        for queue in (queue for queue in queues if "-all-" in queue):
            await_in_sync(nodes[0], queue, nodes)
        for node in nodes:
            until(lambda node=node: not spooled(node), f"the spools of {node.name} are empty")  # type: ignore[misc]
        ledger.check_so_far()
    return confirmed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--strategy", choices=STRATEGIES, default=None, help="by default all, one after the other")
    parser.add_argument("--folder", default=None, help="for data and logs; kept")
    options = parser.parse_args()
    if (reason := why_not()) is not None:
        print(f"not here: {reason}", file=sys.stderr)
        return 69
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    folder = Path(options.folder or tempfile.mkdtemp(prefix="leveret-partitions-"))
    strategies = STRATEGIES if options.strategy is None else (options.strategy,)
    began = time.monotonic()

    def note(text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')}  {time.monotonic() - began:7.2f}  {text}", flush=True)

    note(f"seed {seed}, {options.nodes} nodes, in {folder}")
    with Network(options.nodes) as network:
        nodes = Archipelago(network, folder, CONFIG)
        try:
            nodes.start()
            for strategy in strategies:
                note(f"strategy {strategy}")
                confirmed = soak(nodes, strategy, seed, options.minutes * 60 / len(strategies), strategy, note)
                note(f"{confirmed} messages were confirmed, and each was delivered")
        except (AssertionError, RuntimeError) as error:
            note(f"failed (seed {seed}, logs in {folder}): {error}")
            return 1
        finally:
            nodes.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
