"""What Spark needs to run on this machine, and settings of all its sessions in tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from typing import Any

JAVA = 17
CONFIG = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}


SLOW = "failed to connect back"
TRIES = 4


def ended(begin: Callable[[], Any]) -> None:
    """Run a stream to its end. Spark gives a Python process ten seconds to start, whatever is set, and on a machine
    that has much else to do that may be too little; then the query goes on from its checkpoint."""
    for left in reversed(range(TRIES)):
        try:
            begin().awaitTermination()
            return
        except Exception as error:
            if SLOW not in str(error) or not left:
                raise


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
