"""Each program of examples/ starts with the command of examples/README.md, and prints what it should."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import ROOT

EXAMPLES = ROOT / "examples"
SECONDS = 240
OUTPUTS = {
    "aio_pika_work": ["published 100 jobs", "worked on 100 jobs"],
    "celery_tasks": ["total: 21 after 1 retry"],
    "faststream_orders": ["Ann pays 10"],
    "django_orders": ["201 {'ordered': 'tea'}", "consumed {'item': 'tea'}"],
    "mqtt_sensors": ["sensors.kitchen.temperature 31.5", "the device is told to open the window"],
    "spark_counts": ["at 1305", "de 1335", "fr 1365"],
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name == "spark_counts" else name for name in OUTPUTS]
)
def test_an_example(name: str, tmp_path: Path) -> None:
    if name == "spark_counts" and shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java 17 or newer")
    environment = {key: value for key, value in os.environ.items() if key != "AMQP_URL"}
    environment |= {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")], cwd=tmp_path, env=environment,
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line in OUTPUTS[name]] == OUTPUTS[name], done.stdout


def test_the_list() -> None:
    """README.md of the examples names each file."""
    named = re.findall(r"`python examples/(\w+)\.py`", (EXAMPLES / "README.md").read_text(encoding="utf-8"))
    assert sorted(named) == sorted(file.stem for file in EXAMPLES.glob("*.py")) == sorted(OUTPUTS)
