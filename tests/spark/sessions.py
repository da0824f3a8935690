"""What Spark needs to run on this machine, and settings of all its sessions in tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache

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
