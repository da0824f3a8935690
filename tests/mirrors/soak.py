"""Mirrored queues under load, while nodes are killed, stopped and frozen at random.

    python -m tests.mirrors.soak --minutes 10 [--seed 7] [--nodes 3]

Every number that was confirmed is written down (see `ledger`), and has to be delivered. In the end all nodes are up,
all copies have to become in sync, and all queues have to be empty. The seed decides what is done to whom; how the
nodes take it is up to the machine, so a seed is a hint, not a replay.
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

from tests.members import Cluster
from tests.mirrors.ledger import Ledger
from tests.mirrors.rings import await_in_sync, count, declare, mirror
from tests.servers import until

CONFIG = "net_ticktime = 1\ncluster.operation_timeout = 2000"
Note = Callable[[str], None]


def torment(nodes: Cluster, dice: random.Random, seconds: float, ledger: Ledger, note: Note) -> None:
    """Do something to a node or two, mend it, and again."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while time.monotonic() < deadline:
        ledger.check_so_far()
        victims = dice.sample(nodes.nodes, 1 if dice.random() < 0.8 else dice.randrange(2, len(nodes) + 1))
        for node in victims:
            what = dice.choice(("kill", "kill", "freeze", "stop"))
            note(f"{what} {node.name}")
            if what == "kill":
                node.kill()
            elif what == "freeze":
                node.freeze()
            else:
                node.stop()
            pause.wait(dice.choice((0.0, 0.0, 0.2)))
        pause.wait(dice.choice((0.0, 0.3, 1.5, 2.5)))
        dice.shuffle(victims)
        for node in victims:
            note(f"{'thaw' if node.frozen else 'start'} {node.name}")
            if node.frozen:
                node.thaw()
            else:
                node.spawn()
            pause.wait(dice.choice((0.0, 0.0, 0.5)))
        for node in victims:
            if node.fresh:
                node.wait_until_ready()
        pause.wait(dice.choice((0.0, 0.2, 1.0, 3.0)))


def soak(nodes: Cluster, seed: int, seconds: float, prefix: str = "soak", note: Note = lambda text: None) -> int:
    """How many messages were confirmed. Raises AssertionError."""
    dice = random.Random(seed)
    mirror(nodes[0], f"{prefix}-all")
    mirror(nodes[0], f"{prefix}-two", "exactly", 2)
    ledger = Ledger(nodes, dice)
    queues = [f"{prefix}-{mode}-{number}" for mode in ("all", "two") for number in range(3)]
    for number, queue in enumerate(queues):
        declare(nodes[number % len(nodes)], queue)
        ledger.add(queue)
    with ledger:
        ledger.await_progress(50)
        torment(nodes, dice, seconds, ledger, note)
        note("mend")
        nodes.mend()
        ledger.await_progress(50)
        confirmed = ledger.finish()
        note(f"all was delivered: {ledger.summary()}")
        for queue in queues:
            until(lambda queue=queue: count(nodes[0], queue) == 0, f"{queue} is empty")  # type: ignore[misc]
        for queue in (queue for queue in queues if "-all-" in queue):
            await_in_sync(nodes[0], queue, nodes)
        ledger.check_so_far()
    note("all copies are in sync")
    return confirmed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--folder", default=None, help="for data and logs; kept")
    options = parser.parse_args()
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    folder = Path(options.folder or tempfile.mkdtemp(prefix="leveret-soak-"))
    began = time.monotonic()

    def note(text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')}  {time.monotonic() - began:7.2f}  {text}", flush=True)

    note(f"seed {seed}, {options.nodes} nodes, in {folder}")
    nodes = Cluster(folder, CONFIG, options.nodes)
    try:
        confirmed = soak(nodes.start(), seed, options.minutes * 60, note=note)
    except (AssertionError, RuntimeError) as error:
        note(f"failed (seed {seed}, logs in {folder}): {error}")
        return 1
    finally:
        nodes.end()
    note(f"{confirmed} messages were confirmed, and each was delivered")
    return 0


if __name__ == "__main__":
    sys.exit(main())
