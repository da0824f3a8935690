"""The pipeline: plain PySpark jobs over what Leveret knows, each a function to import and a command.

    leveret pipeline audit --servers http://one:15672 --out /data/audit
    from pyspark_leveret.jobs import audit; audit.audit(spark, {"servers": "http://one:15672"})

A job is a module with `DESCRIPTION`, `EXAMPLES`, `add_arguments(parser)` and `run(spark, parsed)`, which gives the exit
code. Nothing of Spark is imported before a job begins, so that `--help` answers at once.
"""

from __future__ import annotations

from typing import Final

NAMES: Final = ("audit", "replication", "archive", "replay", "balance", "rollup")
