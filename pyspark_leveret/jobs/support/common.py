"""Shared by all jobs: options for the broker and for Spark, the session, error texts, and progress lines."""

from __future__ import annotations

import argparse
import atexit
import logging
import os
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark_leveret.connect import LeveretError
from pyspark_leveret.jobs.support import job_status
from pyspark_leveret.jobs.support.quick_python import quick_python
from pyspark_leveret.jobs.support.signals import Stopped, aside
from pyspark_leveret.options import ACCESS, BadOption
from pyspark_leveret.schema import BadSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PASSWORD_VARIABLE: Final = "LEVERET_PASSWORD"
LOG_LEVEL: Final = "spark.log.level"
JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
# Java compiles what it runs often once more, and better, which takes most of the time of a short job. Without that it
# keeps too little room for code, unless told otherwise.
QUICK_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
SLOW_START: Final = "Python worker failed to connect back"  # No setting of Spark gives a worker more time.
_REASON: Final = re.compile(r"pyspark_leveret\.\w+\.(?:LeveretError|BadOption|BadSchema): (.+)")
_OF_FILES: Final = re.compile(r"\b(?:org\.apache\.hadoop|java\.n?io)\.(?:\w+\.)*(\w+Exception): (.+)")
_DURATION: Final = re.compile(r"(\d{1,9})([smhd]?)")
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_HELP: Final = {
    "servers": "nodes, separated by commas: host, or http(s)://host:port of the management port (127.0.0.1)",
    "vhost": "the vhost (/)",
    "user": "user of the broker (guest)",
    "password": f"password of the user (guest, or the value of {PASSWORD_VARIABLE})",
    "cafile": "CA certificate to trust, for https",
    "certfile": "client certificate",
    "keyfile": "key of the client certificate",
}


_HELP_AMQP: Final = {
    "servers": "nodes, separated by commas: host, or amqp(s)://host:port of the AMQP port (127.0.0.1)",
    "cafile": "CA certificate to trust, for amqps",
}


class NoJava(Exception):
    """There is no Java. The text is for the user."""


def add_access(parser: argparse.ArgumentParser, speaks_amqp: bool = False) -> None:
    """Adds the options for the broker. `speaks_amqp`: the job asks AMQP ports, and not those for management."""
    group = parser.add_argument_group("the broker")
    for name in ACCESS:
        text = _HELP_AMQP.get(name, _HELP[name]) if speaks_amqp else _HELP[name]
        group.add_argument(f"--{name}", metavar=name.upper(), help=text)
    usual = "(nowhere)" if speaks_amqp else "(those of --servers), or 'nowhere'"
    group.add_argument(
        "--report-to", metavar="SERVERS", help=f"management ports that show the result {usual}"
    )
    group.add_argument("--report-as", metavar="NAME", help="name of the job there (the name of the job)")


def add_session(parser: argparse.ArgumentParser) -> None:
    """Adds the options for Spark."""
    group = parser.add_argument_group("Spark")
    group.add_argument("--master", metavar="URL", help="spark://host:7077, yarn, local[4] … (local[*])")
    group.add_argument(
        "--conf",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a setting of Spark (may be repeated); spark.log.level=WARN shows Spark's log",
    )


def seconds(text: str) -> int:
    """Reads a duration: 90, 90s, 15m, 1h or 1d. Raises ArgumentTypeError."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None or not int(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, nor a time such as 15m, 1h, 1d")
    return int(found[1]) * _UNITS_S[found[2] or "s"]


def add_schedule(parser: argparse.ArgumentParser) -> None:
    """Adds the option that repeats a job which comes to an end."""
    parser.add_argument(
        "--every", metavar="TIME", type=seconds, help="run every 15m, 1h, 1d …, until it is stopped"
    )


def access_of(parsed: argparse.Namespace) -> dict[str, str]:
    """Returns the given options for the broker as options of `format("leveret")`."""
    found = {name: getattr(parsed, name) for name in ACCESS if getattr(parsed, name, None) is not None}
    if "password" not in found and PASSWORD_VARIABLE in os.environ:
        found["password"] = os.environ[PASSWORD_VARIABLE]
    return found


def session(
    name: str, master: str | None = None, settings: list[str] | tuple[str, ...] = (), is_short: bool = False
) -> SparkSession:
    """Starts the session of a job that runs as a command. Raises NoJava, or ValueError for a malformed --conf."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise NoJava("Spark needs Java 17 or newer, and there is none: apt-get install openjdk-17-jre-headless")
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    from pyspark_leveret.several_streams import prepare_streams

    # Jobs pass Arrow tables and do not use pandas; Spark warns about its version all the same.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    for logger in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):  # They log each exception again, as JSON.
        PySparkLogger.getLogger(logger).setLevel(logging.CRITICAL)
    is_local = (master or "local").startswith("local")
    os.environ.setdefault("PYSPARK_PYTHON", _python_here() if is_local else sys.executable)
    builder = SparkSession.builder.appName(f"leveret {name}").master(master or "local[*]")
    moves = str(sys.stderr.isatty()).lower()  # Progress bars are for terminals.
    builder = builder.config("spark.sql.session.timeZone", "UTC").config("spark.ui.showConsoleProgress", moves)
    if is_short and is_local:
        builder = builder.config(JAVA_OPTIONS, QUICK_JAVA)
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"--conf needs KEY=VALUE, not {setting}")
        builder = builder.config(key, value)
    made = builder.getOrCreate()
    prepare_streams(made)
    # The error that ends a job is raised here and printed in one line. Spark would log it several times more, with
    # stack traces.
    if made.conf.get(LOG_LEVEL, None) is None:
        made.sparkContext.setLogLevel("FATAL")
    return made


def _python_here() -> str:
    """Returns the Python for processes on this machine. Its folder is deleted at the end."""
    folder = tempfile.mkdtemp(prefix="leveret-python-")
    atexit.register(partial(shutil.rmtree, folder, ignore_errors=True))
    return quick_python(Path(folder))


def adapt(rows: DataFrame) -> None:
    """Lets Spark size the tasks of queries within `foreachBatch` by their data. It does so for all queries but those in
    the session of a stream, where each shuffle is 200 tasks, of which a small batch leaves most empty."""
    rows.sparkSession.conf.set("spark.sql.adaptive.enabled", "true")


def reason(error: Exception) -> str | None:
    """Returns the cause of a failure in one line, if it is an error of neither Spark nor this program. In Spark's own
    text it stands at the end of a Python traceback within a Java one."""
    if isinstance(error, LeveretError | BadOption | BadSchema):
        return str(error)
    found: list[str] = _REASON.findall(str(error))
    if not found and SLOW_START in str(error):
        return (
            "Spark gave up on a Python process that took more than ten seconds to start: this machine has too much "
            "else to do. A job with a checkpoint goes on where it was when it is started again"
        )
    if found:
        return found[-1].strip()
    # A path that is no folder, lacks permissions, or is on a full disk.
    of_files: list[tuple[str, str]] = _OF_FILES.findall(str(error))
    return f"files cannot be read or written: {': '.join(of_files[-1]).strip()}" if of_files else None


def first_line(error: Exception) -> str:
    """Returns the first line of an error of Spark; a plan or a trace follows it."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def say(text: str) -> None:
    """Prints a line to stderr; stdout is for results."""
    print(text, file=sys.stderr, flush=True)


def follow(query: StreamingQuery, tell: Callable[[str], None] = say) -> int:
    """Waits until a stream ends, prints a line for each batch with rows, and returns the number of all rows. Raises the
    error that ended it, if it was one."""
    try:
        return _follow(query, tell)
    except Stopped:
        aside(query.stop)  # Before Spark stops: that would make the running batch fail.
        raise


def _follow(query: StreamingQuery, tell: Callable[[str], None]) -> int:
    told, total = -1, 0
    while True:
        ended = query.awaitTermination(1)
        for progress in query.recentProgress:
            if progress["batchId"] > told:
                told = progress["batchId"]
                rows, rate = progress["numInputRows"], progress["processedRowsPerSecond"]
                if rows:
                    total += rows
                    job_status.came(told, rows)
                    tell(f"batch {told}: {rows:,} rows, {rate:,.0f} a second")
        if ended:
            query.awaitTermination()  # A query that is being stopped counts as ended before its last batch is stopped.
            return total
