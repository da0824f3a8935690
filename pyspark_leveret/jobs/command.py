"""Runs a job of the pipeline as a command: `leveret pipeline JOB …` calls `main`."""

from __future__ import annotations

import argparse
import sys
import time
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

from leveret.base.exit_codes import OK, UNAVAILABLE, USAGE
from pyspark_leveret.connect import LeveretError
from pyspark_leveret.jobs import NAMES
from pyspark_leveret.jobs.support import common, job_status, schedule, signals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main(words: list[str]) -> int:
    """Runs the job that the first word names with the other words as its arguments, and returns its exit code."""
    if words[0] not in NAMES:
        print(f"leveret pipeline: unknown job {words[0]}; use one of: {', '.join(NAMES)}", file=sys.stderr)
        return USAGE
    return _run(words[0], words[1:])


def _run(name: str, words: list[str]) -> int:
    job = import_module(f"pyspark_leveret.jobs.{name}")
    parser = argparse.ArgumentParser(
        prog=f"leveret pipeline {name}",
        description=job.DESCRIPTION,
        epilog=job.EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    job.add_arguments(parser)
    common.add_access(parser, getattr(job, "SPEAKS_AMQP", False))
    common.add_session(parser)
    try:
        parsed = parser.parse_args(words)
    except SystemExit as end:
        return USAGE if end.code else OK
    try:
        with signals.stoppable() as relay:
            return _work(name, job, parsed, relay)
    except KeyboardInterrupt:
        ending = signals.ending()
        print(f"\nleveret pipeline {name}: stopped; {ending.text}", file=sys.stderr)
        return ending.code


def _repeat(
    name: str, job: ModuleType, parsed: argparse.Namespace, spark: SparkSession, status: job_status.JobStatus
) -> NoReturn:
    """Runs a job again and again, until a signal comes. What one run fails with, the next one may not."""
    signals.if_stopped(signals.GOES_ON, endless=True)
    begin_s = time.time()
    while True:
        try:
            status.end(job.run(spark, parsed))
        except Exception as error:
            reason = common.reason(error)
            if reason is None:
                raise
            print(f"leveret pipeline {name}: {reason}", file=sys.stderr)
            status.end(UNAVAILABLE, reason)
        spark.catalog.clearCache()
        due_s = schedule.next_time(begin_s, parsed.every, time.time())
        common.say(f"next at {datetime.fromtimestamp(due_s, UTC):%Y-%m-%d %H:%M:%S} UTC")
        time.sleep(max(0.0, due_s - time.time()))
        status.renew()


def _work(name: str, job: ModuleType, parsed: argparse.Namespace, relay: signals.Relay) -> int:
    is_short = False
    try:
        if hasattr(job, "before"):
            is_short = job.before(parsed)
    except LeveretError as error:
        print(f"leveret pipeline {name}: {error}", file=sys.stderr)
        return int(getattr(job, "CANNOT_SAY", UNAVAILABLE))
    try:
        common.say("starting Spark ...")
        spark = common.session(name, parsed.master, parsed.conf, is_short)
    except (common.NoJava, ValueError) as error:
        print(f"leveret pipeline: {error}", file=sys.stderr)
        return UNAVAILABLE if isinstance(error, common.NoJava) else USAGE
    shown_as, shown_at = parsed.report_as or name, parsed.report_to or getattr(job, "REPORT_TO", None)
    relay.handle_signals()
    signals.if_stopped(signals.BEGINS_ANEW)
    status = job_status.begin(job_status.JobStatus(shown_as, common.access_of(parsed), shown_at, common.say))
    end = spark.stop
    try:
        if getattr(job, "REPEATS", False) and parsed.every is not None:
            _repeat(name, job, parsed, spark, status)
        code: int = job.run(spark, parsed)
        status.end(code)
        return code
    except signals.Stopped:
        end = partial(signals.aside, spark.stop)
        status.stopped(signals.ending().text, signals.ending().code)
        raise
    except Exception as error:
        reason = common.reason(error)
        status.end(UNAVAILABLE, reason or f"{type(error).__name__}: {error}".partition("\n")[0])
        if reason is None:
            raise
        print(f"leveret pipeline {name}: {reason}", file=sys.stderr)
        return UNAVAILABLE
    finally:
        end()
