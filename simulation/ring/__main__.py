from __future__ import annotations

import sys

from simulation.ring.world import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
