"""Long runs: seeds that nobody has tried yet, until the time is up or something breaks.

    python -m tests.system.soak --minutes 60     (make soak runs ten minutes)
    python -m tests.system.soak --each           one short run of every combination of kinds; all that fail are listed

Each part is a command of its own, so that what fails can be run again as it was: the command is printed, with its seed.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import cycle

from simulation.many import all_kinds, endless_kinds
from tests.support.networks import why_not

LOG_SEEDS = 400
FUZZ_INPUTS = 100_000
RAFT_SEEDS = 200
CLUSTER_SEEDS = 100
RING_SEEDS = 200
SITES_SEEDS = 20
KINDS_AT_ONCE = 12
KIND_SEEDS = 2
KIND_S = 600  # A run that is not over by then does not end.


def parts(rng: random.Random) -> Iterator[tuple[str, dict[str, str], list[str]]]:
    """For ever: what it is, what to add to the environment, what to run."""
    kinds = endless_kinds(rng)
    for name in cycle(("log", "fuzz", "raft", "cluster", "kinds", "ring", "sites", "ledger", "mirrors", "partitions")):
        if name == "log":
            first = rng.randrange(10**6, 10**9)
            seeds = {"LEVERET_LOG_SEEDS": f"{first}-{first + LOG_SEEDS}"}
            yield f"{LOG_SEEDS} crashes of the log", seeds, ["pytest", "-q", "-x", "tests/unit/storage/test_crashes.py"]
        elif name == "fuzz":
            seed = str(rng.randrange(10**9))
            yield f"{FUZZ_INPUTS} inputs", {}, ["tests.system.fuzz", "--inputs", str(FUZZ_INPUTS), "--seed", seed]
        elif name == "raft":
            seed = str(rng.randrange(10**6, 10**9))
            yield f"{RAFT_SEEDS} worlds of Raft", {}, ["simulation.raft", "--seed", seed, "--count", str(RAFT_SEEDS)]
        elif name == "cluster":
            seed = str(rng.randrange(10**6, 10**9))
            yield f"{CLUSTER_SEEDS} clusters", {}, ["simulation", "--seed", seed, "--count", str(CLUSTER_SEEDS)]
        elif name == "kinds":
            for _ in range(KINDS_AT_ONCE):
                some = next(kinds)
                seed = str(rng.randrange(10**6, 10**9))
                what = f"{KIND_SEEDS} clusters: {', '.join(some) or 'plain'}"
                flags = [f"--{kind}" for kind in some]
                yield what, {}, ["simulation", "--seed", seed, "--count", str(KIND_SEEDS), *flags]
        elif name == "ring":
            seed = str(rng.randrange(10**6, 10**9))
            yield f"{RING_SEEDS} rings", {}, ["simulation.ring", "--seed", seed, "--count", str(RING_SEEDS)]
        elif name == "sites":
            seed = str(rng.randrange(10**6, 10**9))
            flags = ["--two-clusters", rng.choice(("--shovels", "--federation")), "--nodes", str(rng.randrange(1, 4))]
            yield (
                f"{SITES_SEEDS} pairs of clusters",
                {},
                ["simulation", *flags, "--seed", seed, "--count", str(SITES_SEEDS)],
            )
        elif name == "mirrors":
            seed = str(rng.randrange(10**9))
            yield "mirrors killed under load", {}, ["tests.system.mirrors.soak", "--minutes", "1", "--seed", seed]
        elif name == "partitions":
            if why_not() is None:
                seed = str(rng.randrange(10**9))
                yield "links cut under load", {}, ["tests.system.partitions.soak", "--minutes", "2", "--seed", seed]
        else:
            yield "kill -9 under load", {}, ["pytest", "-q", "-x", "tests/system/node/test_durability.py"]


def run(command: list[str], environment: dict[str, str], seconds: float = KIND_S) -> str | None:
    """What went wrong."""
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=seconds
        )  # The longest of the others takes three minutes.
    except subprocess.TimeoutExpired:
        return f"it is not over after {seconds} s"
    return f"{done.stdout[-20_000:]} {done.stderr[-5_000:]}" if done.returncode else None


def each(seed: int, steps: int, seconds: float, some: range) -> int:
    """One run of every combination of kinds, failures included; how many failed."""
    failed = []
    for number, kinds in list(enumerate(all_kinds()))[some.start : some.stop]:
        flags = ["--seed", str(seed + number), "--steps", str(steps), *(f"--{kind}" for kind in kinds)]
        began = time.monotonic()
        problem = run([sys.executable, "-m", "simulation", *flags], dict(os.environ), seconds)
        took = f"{time.monotonic() - began:5.1f} s"
        print(f"{number:3} {took}  {'failed' if problem else 'passed'}: {' '.join(flags)}", flush=True)
        if problem is not None:
            failed.append(f"{problem}\nfailed. Again: python -m simulation {' '.join(flags)}")
    print("\n\n".join([*failed, f"{len(failed)} failed"]), flush=True)
    return len(failed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None, help="for the choice of seeds; by default another each time")
    parser.add_argument("--each", action="store_true", help="one short run of every combination of kinds instead")
    parser.add_argument("--steps", type=int, default=40, help="of each of these")
    parser.add_argument("--seconds", type=float, default=240, help="after which one of these does not end")
    parser.add_argument("--range", type=int, nargs=2, default=(0, 10**6), help="the first of these, and the one after")
    options = parser.parse_args()
    if options.each:
        first = 1 if options.seed is None else options.seed
        return 1 if each(first, options.steps, options.seconds, range(*options.range)) else 0
    seed = random.randrange(10**9) if options.seed is None else options.seed
    began = time.monotonic()
    for number, (what, added, arguments) in enumerate(parts(random.Random(seed)), 1):
        minutes = (time.monotonic() - began) / 60
        if minutes >= options.minutes:
            print(f"{number - 1} parts passed, 0 failed", flush=True)
            return 0
        print(f"{minutes:6.1f} min  part {number} (soak seed {seed}): {what}", flush=True)
        command = [sys.executable, "-m", *arguments]
        problem = run(command, {**os.environ, **added})
        if problem is not None:
            print(problem)
            settings = " ".join(f"{name}={value}" for name, value in added.items())
            print(f"failed. Again: {settings} python -m {' '.join(arguments)}".replace("  ", " "))
            return 1
    raise AssertionError("the parts never end")


if __name__ == "__main__":
    sys.exit(main())
