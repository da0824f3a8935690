from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.system.attacks.attacks import ATTACKS
from tests.system.attacks.running import Stage


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.system.attacks", description="Attack a node, and measure others.")
    parser.add_argument("--times", type=int, default=10, help="how often each is repeated")
    parser.add_argument("--attack", choices=list(ATTACKS), action="append", help="default: all")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in options.attack or ATTACKS:
            try:
                with Stage(Path(folder) / name) as stage:
                    found = stage.attack(name, options.times)
            except AssertionError as error:
                print(f"{name}: {error}", file=sys.stderr)
                return 1
            shown = " ".join(f"{key} {value:.3f} s" for key, value in found.items() if isinstance(value, float))
            rest = f"{found['count']} answers, log {found['log']} bytes, memory {found['memory'] / (1 << 20):+.0f} MiB"
            print(f"{name:12} {shown}; {rest}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
