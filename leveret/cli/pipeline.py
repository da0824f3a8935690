"""`leveret pipeline`: hands over to the jobs for Spark, if PySpark is installed.

The jobs are an add-on: they import this package, and nothing here imports them. `COMMAND` names the module whose `main`
runs them.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final

from leveret.base.exit_codes import OK, UNAVAILABLE, USAGE

COMMAND: Final = "pyspark_leveret.jobs.command"
NEEDED: Final = ("pyspark", "pyarrow", "numpy")
JOBS: Final = ("archive", "audit", "balance", "replay", "replication", "rollup")

DESCRIPTION: Final = """\
Runs a job of the data pipeline with PySpark: on this machine, or on the Spark cluster that --master names.
"""

EXAMPLES: Final = """\
jobs:
  audit         finds lost, duplicated and reordered messages; prints a verdict and writes a report
  replication   shows how far mirrors lagged, with view changes and promotions
  archive       writes queues to a lake of Parquet files, exactly once
  replay        publishes messages of a lake again, by time or filter, at a chosen rate
  balance       plans which node should be the master of which queue
  rollup        computes figures for each queue and minute

examples:
  leveret pipeline audit --out /data/audit
  leveret pipeline archive --subscribe orders --lease archive --to /data/lake --once
  leveret pipeline replay --from /data/lake --queue orders --since 2026-11-01 --rate 5000
Each job has its own --help. They need PySpark (in a checkout: pip install '.[spark]') and Java 17 or newer.
"""


def pipeline(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(
            f"usage: leveret pipeline JOB …\n\n{DESCRIPTION}\n{EXAMPLES}",
            end="",
            file=sys.stdout if words else sys.stderr,
        )
        return OK if words else USAGE
    try:
        command = import_module(COMMAND)
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in NEEDED:
            raise
        print(
            f"leveret pipeline: {missing.name} is missing. Install it in a checkout with: pip install '.[spark]'. The "
            "Docker image has neither it nor Java",
            file=sys.stderr,
        )
        return UNAVAILABLE
    return int(command.main(words))
