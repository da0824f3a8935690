"""Runs a core part of the tests with the lowest and with the newest versions of what the package needs.

    python packaging/versions.py [lowest] [newest] [spark] [--python PYTHON]

Each set gets an environment of its own in `.versions/`. The lowest versions are those that pyproject.toml names; the
newest are what pip finds. Of the extra `test`, only what the chosen tests import is installed, by the same rule, and of
the extra `spark` what reads queues as tables, without Spark itself. With `spark`, what every version of Spark has to do
is tested with each of them, and recipes that need more packages with the newest; that needs Java, and is not done
unless it is named. The exit code is not 0 if a test fails.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".versions"
TOOLS = ("aio-pika", "hypothesis", "pika", "pytest", "pytest-asyncio", "pyyaml", "numpy", "pandas", "pyarrow")
# Protocol, storage, the HTTP server on h11, sockets on uvloop, a real client, TLS, tables.
CORE = (
    "tests/unit/protocol", "tests/unit/sessions", "tests/unit/storage", "tests/unit/data",
    "tests/unit/management/http/test_http_server.py", "tests/system/management/test_upkeep.py",
    "tests/unit/node/sockets/test_peer_links.py", "tests/system/node/test_durability.py",
    "tests/unit/node/sockets/test_tls_handshakes.py", "tests/system/clients/test_pika.py",
)  # fmt: skip


# Versions of Spark, each with a pandas that it supports.
SPARKS = {"4.0": "pandas<3", "4.1": "pandas<3", "4.2": "pandas<3", "4.3": "pandas>=3"}
SPARK_TESTS = ("-m", "spark", "tests/system/spark/versions/test_every_version.py")
# Packages that recipes in docs/spark.md use and nothing else needs, and the tests that run them: with the newest Spark.
RECIPES = ("deltalake", "fastavro", "protobuf", "pyiceberg[sql-sqlite]")
RECIPE_TESTS = ("tests/system/spark/test_docs.py",)


def requirements() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    tools = {name_of(one): one for one in [*extras["spark"], *extras["test"]]}
    return [*project["dependencies"], *(tools[name] for name in TOOLS)]


def name_of(requirement: str) -> str:
    return re.split(r"[\[><=~!; ]", requirement, maxsplit=1)[0].lower()


def run(which: str, python: str) -> int:
    folder = FOLDER / which
    own = folder / "bin" / "python"
    subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True)
    wanted = requirements()
    if which == "lowest":
        wanted = [one.replace(">=", "==", 1) for one in wanted]
    subprocess.run([str(own), "-m", "pip", "install", "--quiet", "--upgrade", *wanted], check=True)
    subprocess.run([str(own), "-m", "pip", "list", "--format=freeze"], check=True)
    print(f"versions: {which}", flush=True)
    return subprocess.run([str(own), "-m", "pytest", "-q", *CORE], cwd=ROOT, check=False).returncode


def run_spark(python: str) -> list[str]:
    """Returns the versions of Spark with which a test fails."""
    failed = []
    for version, pandas in SPARKS.items():
        folder = FOLDER / f"spark-{version}"
        own = folder / "bin" / "python"
        subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True)
        wanted = [one for one in requirements() if name_of(one) not in ("pandas", "aio-pika")]
        wanted += [pandas, f"pyspark~={version}.0"]
        tests = SPARK_TESTS
        if version == list(SPARKS)[-1]:
            wanted, tests = [*wanted, *RECIPES], (*SPARK_TESTS, *RECIPE_TESTS)
        subprocess.run([str(own), "-m", "pip", "install", "--quiet", *wanted], check=True)
        print(f"versions: Spark {version}, {pandas}", flush=True)
        if subprocess.run([str(own), "-m", "pytest", "-q", *tests], cwd=ROOT, check=False).returncode:
            failed.append(f"Spark {version}")
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description="Tests with the lowest and the newest versions of dependencies.")
    parser.add_argument("which", nargs="*", default=["lowest", "newest"], choices=["lowest", "newest", "spark"])
    parser.add_argument("--python", default=sys.executable)
    parsed = parser.parse_args()
    failed = [which for which in parsed.which if which != "spark" and run(which, parsed.python) != 0]
    failed += run_spark(parsed.python) if "spark" in parsed.which else []
    sys.exit(f"versions: tests fail with the {' and the '.join(failed)} versions" if failed else 0)


if __name__ == "__main__":
    main()
