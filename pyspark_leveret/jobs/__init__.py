"""The pipeline: PySpark jobs on Leveret's queues and journals, each a function to import and a command.

    leveret pipeline audit --servers http://one:15672 --out /data/audit
    from pyspark_leveret.jobs import audit; audit.audit(spark, {"servers": "http://one:15672"})

A job is a module with `DESCRIPTION`, `EXAMPLES`, `add_arguments(parser)` and `run(spark, parsed)`, which returns the
exit code. Nothing of Spark is imported before a job begins, so that `--help` answers at once. `command` runs a job as
`leveret pipeline` does, `demo` shows the audit at work.

Public, with the functions that docs/pipeline.md names: the modules of the jobs, and `journal`, `lake` and `report`. The
packages `analysis` and `support` are not. Jobs import both, the connector, `leveret.data`, and the broker's rebalancing
planner; `demo` also imports `leveret.testing`.
"""

from __future__ import annotations

from typing import Final

NAMES: Final = ("audit", "replication", "archive", "replay", "balance", "rollup")
