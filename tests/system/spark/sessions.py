"""What Spark needs to run on this machine, and settings of all its sessions in tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

JAVA = 17
# A session of tests ends before code that the second compiler makes could pay for making it: without it a session takes
# three fifths of the processor's time.
# Java then keeps little room for code, which all tests of Spark in one process use up.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
CONFIG = {
    "spark.driver.extraJavaOptions": QUICK_JAVA,
    "spark.executor.extraJavaOptions": QUICK_JAVA,
    # Code that Spark writes and compiles for each query pays for itself with more rows than there are here.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}
TRIES = 4


def is_slow_start(error: Exception, attempt: int) -> bool:
    """Whether a query failed only because a Python process took too long to start, and may be started once more.

    A streaming source has a Python process at the driver, begun anew for each query. Spark's PythonWorkerFactory gives
    it ten seconds to connect back, which no setting changes. What it imports by then takes a third of a second of a
    processor (see `quick_python`), and on a machine with thirty times as much to do as it can, all of those ten. The
    query has done nothing by then; started again, it goes on from its checkpoint. It is said, so that nobody takes it
    for normal, and the last attempt fails as any other.
    """
    if "failed to connect back" not in str(error) or attempt >= TRIES:
        return False
    warnings.warn(f"Spark gave up on a Python process that was slow to start (attempt {attempt})", stacklevel=3)
    return True


def ended(begin: Callable[[], Any]) -> None:
    """Run a stream to its end."""
    for attempt in range(1, TRIES + 1):
        try:
            begin().awaitTermination()
            return
        except Exception as error:
            if not is_slow_start(error, attempt):
                raise


class Patient:
    """A streaming query that is started once more if its Python process was slow to start (see `is_slow_start`)."""

    def __init__(self, begin: Callable[[], Any]) -> None:
        self._begin = begin
        self._query = begin()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._query, name)

    def awaitTermination(self) -> None:
        self._until_it_works("awaitTermination")

    def settle(self) -> None:
        """One that goes on is ended when it is idle."""
        if self._query.isActive or self._query.exception() is not None:
            self._until_it_works("processAllAvailable")
            self._query.stop()

    def _until_it_works(self, wait: str) -> None:
        for attempt in range(1, TRIES + 1):
            try:
                getattr(self._query, wait)()
                return
            except Exception as error:
                if not is_slow_start(error, attempt):
                    raise
                self._query = self._begin()


@cache
def missing() -> str:
    """Why there can be no Spark session here; "" if there can."""
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java") if home is None else os.path.join(home, "bin", "java")
    if program is None or not os.path.exists(program):
        return f"Spark needs Java {JAVA} or newer, and there is none (make java)"
    said = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(?:1\.)?(\d+)', said)
    if version is None or int(version[1]) < JAVA:
        return f"Spark needs Java {JAVA} or newer, and {program} is {said.splitlines()[0] if said else 'silent'}"
    return ""
