"""Queues under load, while nodes are killed, stopped and frozen at random, one, some or all at once.

    python -m tests.system.mirrors.soak --minutes 10 [--seed 7] [--nodes 3] [--pause 0.1] [--ticktime 4]

Where there may be network namespaces (see `tests.support.networks`), links between nodes are cut as well. Some queues
have mirrors, some have none, some reject publishes, and some are published to by named producers.

Every number that was confirmed is written down (see `ledger`), and has to be delivered. In the end all nodes are up,
all copies have to become in sync, and all queues have to be empty. Then it is told for each kind of queue how many
publishes were refused though their connection stayed, how many of these were kept (their client would publish them
again, and have them twice), and how long somebody has waited for an answer. As a program this fails if it is one in a
thousand for any kind, or longer than `net_ticktime` and a second; `--slack` is for a machine that has much else to do.
Of what is refused by a queue without mirrors, only that counts which was kept: while its node is away, there is no
other answer.

The seed decides what is done to whom; how the nodes take it is up to the machine, so a seed is a hint, not a replay.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.support.members import Cluster
from tests.support.networks import Archipelago, Network, why_not
from tests.support.servers import until
from tests.system.mirrors.ledger import Book, Ledger, NamedPublisher
from tests.system.mirrors.rings import await_in_sync, count, declare, mirror
from tests.system.partitions.soak import cut

REJECTS = {"x-max-length": 1_000_000, "x-overflow": "reject-publish"}  # It never has so many.
REFUSED_ONE_IN = 1_000
PLAIN = "-plain"  # How the queue is called that has no mirrors.
Note = Callable[[str], None]


def config(ticktime_s: int) -> str:
    return f"net_ticktime = {ticktime_s}\ncluster.operation_timeout = {max(2, ticktime_s) * 1000}"


def torment(nodes: Cluster, rng: random.Random, seconds: float, ledger: Ledger, note: Note) -> int:
    """Do something to a node or two, mend it, and again. How often."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    faults = 0
    while time.monotonic() < deadline:
        ledger.check_so_far()
        faults += 1
        if isinstance(nodes, Archipelago) and rng.random() < 0.25:
            note(cut(nodes.network, rng))
            pause.wait(rng.choice((0.3, 2.0, 6.0)))
            note("heal")
            nodes.network.heal()
        else:
            _strike(nodes, rng, pause, note)
        pause.wait(rng.choice((0.0, 0.2, 1.0, 3.0, 6.0)))
    return faults


def _strike(nodes: Cluster, rng: random.Random, pause: threading.Event, note: Note) -> None:
    """Have some nodes die, stop or stand still for a while."""
    victims = rng.sample(nodes.nodes, 1 if rng.random() < 0.8 else rng.randrange(2, len(nodes) + 1))
    for node in victims:
        what = rng.choice(("kill", "kill", "freeze", "stop"))
        note(f"{what} {node.name}")
        if what == "kill":
            node.kill()
        elif what == "freeze":
            node.freeze()
        else:
            node.stop()
        pause.wait(rng.choice((0.0, 0.0, 0.2)))
    pause.wait(rng.choice((0.0, 0.3, 1.5, 2.5, 6.0)))
    rng.shuffle(victims)
    for node in victims:
        note(f"{'thaw' if node.frozen else 'start'} {node.name}")
        if node.frozen:
            node.thaw()
        else:
            node.spawn()
        pause.wait(rng.choice((0.0, 0.0, 0.5)))
    for node in victims:
        if node.fresh:
            node.wait_until_ready()


def soak(
    nodes: Cluster, seed: int, seconds: float, prefix: str = "soak", note: Note = lambda text: None,
    pause_s: float = 0.0,
) -> Ledger:  # fmt: skip
    """The books. Raises AssertionError."""
    rng = random.Random(seed)
    mirror(nodes[0], f"{prefix}-all")
    mirror(nodes[0], f"{prefix}-two", "exactly", 2)
    ledger = Ledger(nodes, rng)
    queues = [f"{prefix}-{mode}-{number}" for mode in ("all", "two") for number in range(3)]
    for number, queue in enumerate([*queues, f"{prefix}{PLAIN}"]):
        home = nodes[number % len(nodes)]
        declare(home, queue)
        ledger.add(queue, pause_s=pause_s, home=home if queue.endswith(PLAIN) else None)
    rejecting, named = f"{prefix}-all-rejects", f"{prefix}-all-named"
    declare(nodes[0], rejecting, arguments=REJECTS)
    ledger.add(rejecting, pause_s=pause_s)
    declare(nodes[1], named)
    ledger.add(named, pause_s=pause_s, kind=NamedPublisher)
    queues += [f"{prefix}{PLAIN}", rejecting, named]
    with ledger:
        ledger.await_progress(50)
        faults = torment(nodes, rng, seconds, ledger, note)
        note(f"mend, after {faults} faults")
        nodes.mend()
        ledger.await_progress(50)
        ledger.finish()
        note(f"all was delivered: {ledger.summary()}")
        for kind in kinds(ledger):
            note(f"  {kind.told()}")
        for queue in queues:
            until(lambda queue=queue: count(nodes[0], queue) == 0, f"{queue} is empty")  # type: ignore[misc]
        for queue in (queue for queue in queues if "-all-" in queue):
            await_in_sync(nodes[0], queue, nodes)
        ledger.check_so_far()
    note("all copies are in sync")
    return ledger


class Kind:
    """What became of the publishes to queues of one kind, on connections that stayed."""

    def __init__(self, name: str, books: list[Book]) -> None:
        self.name = name
        self.confirmed = sum(book.confirmed_count for book in books)
        self.refused = sum(book.refused_count for book in books)
        self.doubled = sum(book.kept_count for book in books)  # A client that publishes again has them twice.
        self.repeated = sum(book.repeated_count for book in books)
        self.longest_s = max(book.longest_s for book in books)

    @property
    def counted(self) -> int:
        """Returns how many refusals count: see above."""
        return self.doubled if self.name.endswith(PLAIN) else self.refused

    @property
    def is_too_much(self) -> bool:
        return self.counted * REFUSED_ONE_IN > self.confirmed

    def told(self) -> str:
        share = f"1 in {self.confirmed // self.counted}" if self.counted else "none"
        figures = f"{self.confirmed} confirmed, {self.refused} refused, {self.doubled} of these kept ({share} counts)"
        return f"{self.name}: {figures}, {self.repeated} delivered again, {self.longest_s:.1f} s the longest wait"


def kinds(ledger: Ledger) -> list[Kind]:
    """Figures for each kind of queue."""
    books: dict[str, list[Book]] = {}
    for book in ledger.books:
        books.setdefault(book.queue.rstrip("-0123456789"), []).append(book)
    return [Kind(name, some) for name, some in books.items()]


def problems(ledger: Ledger, longest_s: float) -> list[str]:
    """What is more than it should be."""
    found = []
    for kind in kinds(ledger):
        if kind.is_too_much:
            found.append(f"too many publishes were refused: {kind.told()}")
    waited_s = max(book.longest_s for book in ledger.books)
    if waited_s > longest_s:
        found.append(f"a publish had no answer for {waited_s:.1f} s")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds from one window of a publisher to the next")
    parser.add_argument("--ticktime", type=int, default=4, help="net_ticktime, in seconds")
    parser.add_argument("--slack", type=float, default=2.0, help="seconds that an answer may come late")
    parser.add_argument("--folder", default=None, help="for data and logs; kept")
    options = parser.parse_args()
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    folder = Path(options.folder or tempfile.mkdtemp(prefix="leveret-soak-"))
    began = time.monotonic()

    def note(text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')}  {time.monotonic() - began:7.2f}  {text}", flush=True)

    note(f"seed {seed}, {options.nodes} nodes, in {folder}")
    with ExitStack() as ending:
        nodes: Cluster
        if (reason := why_not()) is None:
            network = ending.enter_context(Network(options.nodes))
            nodes = Archipelago(network, folder, config(options.ticktime))
        else:
            note(f"links are not cut: {reason}")
            nodes = Cluster(folder, config(options.ticktime), options.nodes)
        ending.callback(nodes.end)
        try:
            ledger = soak(nodes.start(), seed, options.minutes * 60, note=note, pause_s=options.pause)
        except (AssertionError, RuntimeError) as error:
            note(f"failed (seed {seed}, logs in {folder}): {error}")
            return 1
    too_much = problems(ledger, options.ticktime + 1 + options.slack)
    for problem in too_much:
        note(f"failed (seed {seed}, logs in {folder}): {problem}")
    note(f"{ledger.confirmed_count} messages were confirmed, and each was delivered")
    return bool(too_much)


if __name__ == "__main__":
    sys.exit(main())
