"""`leveret pipeline`: the jobs of `pyspark_leveret.jobs`, as commands."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from leveret.cli.exits import OK, UNAVAILABLE, USAGE

if TYPE_CHECKING:
    from pyspark_leveret.jobs.stopping import Relay

JOBS = ("archive", "audit", "balance", "replay", "replication", "rollup")

DESCRIPTION = """\
Runs a job of the data pipeline with PySpark: on this machine, or on the Spark cluster that --master names.
"""

EXAMPLES = """\
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
        from pyspark_leveret.jobs import NAMES
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in ("pyspark", "pyarrow", "numpy"):
            raise
        print(
            f"leveret pipeline: {missing.name} is missing. It comes with: pip install '.[spark]', in a checkout. The "
            "Docker image is without it, and without Java",
            file=sys.stderr,
        )
        return UNAVAILABLE
    if words[0] not in NAMES:
        print(f"leveret pipeline: there is no job {words[0]}, only {', '.join(NAMES)}", file=sys.stderr)
        return USAGE
    return _run(words[0], words[1:])


def _run(name: str, words: list[str]) -> int:
    from pyspark_leveret.jobs import common, stopping

    job = import_module(f"pyspark_leveret.jobs.{name}")
    parser = argparse.ArgumentParser(
        prog=f"leveret pipeline {name}",
        description=job.DESCRIPTION,
        epilog=job.EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    job.add_arguments(parser)
    common.add_access(parser)
    common.add_session(parser)
    try:
        parsed = parser.parse_args(words)
    except SystemExit as end:
        return USAGE if end.code else OK
    try:
        with stopping.stoppable() as relay:
            return _work(name, job, parsed, relay)
    except KeyboardInterrupt:
        ending = stopping.ending()
        print(f"\nleveret pipeline {name}: stopped; {ending.text}", file=sys.stderr)
        return ending.code


def _work(name: str, job: ModuleType, parsed: argparse.Namespace, relay: Relay) -> int:
    from pyspark_leveret.connect import LeveretError
    from pyspark_leveret.jobs import common, stopping, telling

    try:
        if hasattr(job, "before"):
            job.before(parsed)
    except LeveretError as error:
        print(f"leveret pipeline {name}: {error}", file=sys.stderr)
        return int(getattr(job, "CANNOT_SAY", UNAVAILABLE))
    try:
        common.say("starting Spark ...")
        spark = common.session(name, parsed.master, parsed.conf)
    except (common.NoJava, ValueError) as error:
        print(f"leveret pipeline: {error}", file=sys.stderr)
        return UNAVAILABLE if isinstance(error, common.NoJava) else USAGE
    shown_as, shown_at = parsed.report_as or name, parsed.report_to or getattr(job, "REPORT_TO", None)
    relay.heed()
    stopping.if_stopped(stopping.BEGINS_ANEW)
    teller = telling.begin(telling.Teller(shown_as, common.access_of(parsed), shown_at, common.say))
    end = spark.stop
    try:
        code: int = job.run(spark, parsed)
        teller.end(code)
        return code
    except stopping.Stopped:
        end = partial(stopping.aside, spark.stop)
        teller.stopped(stopping.ending().text, stopping.ending().code)
        raise
    except Exception as error:
        reason = common.reason(error)
        teller.end(UNAVAILABLE, reason or f"{type(error).__name__}: {error}".partition("\n")[0])
        if reason is None:
            raise
        print(f"leveret pipeline {name}: {reason}", file=sys.stderr)
        return UNAVAILABLE
    finally:
        end()
