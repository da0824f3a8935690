from __future__ import annotations

import sys

from simulation.raft.world import main

if __name__ == "__main__":
    sys.exit(main())
