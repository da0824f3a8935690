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
  audit         was anything lost, duplicated, reordered? A verdict, and a report to look at
  replication   how far mirrors were behind, with view changes and promotions
  archive       queues into a lake of Parquet files, exactly once
  replay        and back, by time or filter, at a chosen rate
  balance       which node should lead which queue: a plan
  rollup        figures for each queue and minute

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
            f"leveret pipeline: {missing.name} is missing. It comes with: pip install '.[spark]', in a checkout. The "
            "Docker image is without it, and without Java",
            file=sys.stderr,
        )
        return UNAVAILABLE
    return int(command.main(words))
