from __future__ import annotations

import argparse
import sys
from random import SystemRandom
from time import perf_counter

from tests.system.fuzz.fuzzer import FuzzFailed, fuzz, try_one
from tests.system.fuzz.targets import TARGETS


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.system.fuzz", description="Fuzz what reads bytes from strangers.")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="in all, shared out among the targets")
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, which is printed")
    parser.add_argument("--target", choices=[each.name for each in TARGETS], action="append", help="default: all")
    parser.add_argument("--hex", help="run one target on this one input")
    options = parser.parse_args()
    targets = [each for each in TARGETS if options.target is None or each.name in options.target]
    seed = SystemRandom().randrange(2**32) if options.seed is None else options.seed
    try:
        if options.hex is not None:
            if options.target is None or len(targets) != 1:
                parser.error("--hex needs one --target")
            accepted = try_one(targets[0], bytes.fromhex(options.hex))
            print("accepted" if accepted else "refused")
            return 0
        print(f"seed {seed}")
        for target in targets:
            start = perf_counter()
            result = fuzz(target, options.inputs // len(targets), seed)
            spent = perf_counter() - start
            print(
                f"{target.name:12} {result.accepted:8} accepted {result.refused:8} refused {spent:6.1f} s", flush=True
            )
    except FuzzFailed as failure:
        print(failure, file=sys.stderr)
        return 1
    return 0


sys.exit(main())
