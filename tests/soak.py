"""Long runs: seeds that nobody has tried yet, until the time is up or something breaks.

    python -m tests.soak --minutes 60          (make soak runs ten minutes)

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

from tests.networks import why_not

LOG_SEEDS = 400
FUZZ_INPUTS = 100_000
RAFT_SEEDS = 200
CLUSTER_SEEDS = 100
RING_SEEDS = 200


def parts(dice: random.Random) -> Iterator[tuple[str, dict[str, str], list[str]]]:
    """For ever: what it is, what to add to the environment, what to run."""
    for name in cycle(("log", "fuzz", "raft", "cluster", "ring", "ledger", "mirrors", "partitions")):
        if name == "log":
            first = dice.randrange(10**6, 10**9)
            seeds = {"LEVERET_LOG_SEEDS": f"{first}-{first + LOG_SEEDS}"}
            yield f"{LOG_SEEDS} crashes of the log", seeds, ["pytest", "-q", "-x", "tests/log/test_crashes.py"]
        elif name == "fuzz":
            seed = str(dice.randrange(10**9))
            yield f"{FUZZ_INPUTS} inputs", {}, ["tests.fuzz", "--inputs", str(FUZZ_INPUTS), "--seed", seed]
        elif name == "raft":
            seed = str(dice.randrange(10**6, 10**9))
            yield f"{RAFT_SEEDS} worlds of Raft", {}, ["simulation.raft", "--seed", seed, "--count", str(RAFT_SEEDS)]
        elif name == "cluster":
            seed = str(dice.randrange(10**6, 10**9))
            yield f"{CLUSTER_SEEDS} clusters", {}, ["simulation", "--seed", seed, "--count", str(CLUSTER_SEEDS)]
        elif name == "ring":
            seed = str(dice.randrange(10**6, 10**9))
            yield f"{RING_SEEDS} rings", {}, ["simulation.ring", "--seed", seed, "--count", str(RING_SEEDS)]
        elif name == "mirrors":
            seed = str(dice.randrange(10**9))
            yield "mirrors killed under load", {}, ["tests.mirrors.soak", "--minutes", "1", "--seed", seed]
        elif name == "partitions":
            if why_not() is None:
                seed = str(dice.randrange(10**9))
                yield "links cut under load", {}, ["tests.partitions.soak", "--minutes", "2", "--seed", seed]
        else:
            yield "kill -9 under load", {}, ["pytest", "-q", "-x", "tests/node/test_durability.py"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None, help="for the choice of seeds; by default another each time")
    options = parser.parse_args()
    seed = random.randrange(10**9) if options.seed is None else options.seed
    began = time.monotonic()
    for number, (what, added, arguments) in enumerate(parts(random.Random(seed)), 1):
        minutes = (time.monotonic() - began) / 60
        if minutes >= options.minutes:
            print(f"{number - 1} parts passed, 0 failed", flush=True)
            return 0
        print(f"{minutes:6.1f} min  part {number} (soak seed {seed}): {what}", flush=True)
        command = [sys.executable, "-m", *arguments]
        done = subprocess.run(command, env={**os.environ, **added}, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stdout[-20_000:], done.stderr[-5_000:])
            settings = " ".join(f"{name}={value}" for name, value in added.items())
            print(f"failed. Again: {settings} python -m {' '.join(arguments)}".replace("  ", " "))
            return 1
    raise AssertionError("the parts never end")


if __name__ == "__main__":
    sys.exit(main())
