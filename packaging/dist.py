"""Builds the wheel and the source distribution, and tries both as a user would.

    python packaging/dist.py [--python PYTHON ...] [--folder DIR]

Each is installed in a fresh environment, outside of the checkout, with what it needs from pip's index. There every file
of the package must be found, the commands must run, a node must start and answer, and its page must be complete. The
wheel is tried with each interpreter from 3.11 on that can be found (`--python` names others), the source distribution
with the one that runs this script. The exit code is 1 if something is missing or fails.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("leveret", "pyspark_leveret")
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
FIELDS = ("Name", "Version", "Summary", "License-Expression", "Requires-Python", "Keywords", "Classifier",
          "Requires-Dist", "Description-Content-Type")  # fmt: skip

# Run in the fresh environment, in an empty folder.
TRIAL = """
import subprocess, sys, urllib.request
from pathlib import Path
import leveret, leveret.testing
tools = Path(sys.executable).parent
assert "site-packages" in leveret.__file__, leveret.__file__
said = subprocess.run([tools / "leveret", "--version"], check=True, capture_output=True, text=True).stdout
assert said.split()[1] == leveret.__version__, said
subprocess.run([tools / "leveretctl", "help"], check=True, stdout=subprocess.DEVNULL)
subprocess.run([tools / "leveret", "names", "names"], check=True, stdout=subprocess.DEVNULL)
with leveret.testing.broker(config="management.tcp.port = 0\\nmanagement.tcp.ip = 127.0.0.1") as broker:
    url = f"http://127.0.0.1:{broker.ports['management']}"
    login = urllib.request.HTTPPasswordMgrWithDefaultRealm()
    login.add_password(None, url, "guest", "guest")
    ask = urllib.request.build_opener(urllib.request.HTTPBasicAuthHandler(login)).open
    assert b"rabbitmq_version" in ask(f"{url}/api/overview").read()
    for file in (Path(leveret.__file__).parent / "management" / "page").iterdir():
        path = "" if file.name == "index.html" else f"page/{file.name}"
        assert ask(f"{url}/{path}").read() == file.read_bytes(), file
print(f"Python {sys.version.split()[0]}: leveret {leveret.__version__} runs")
"""


def tracked(package: str) -> set[str]:
    """Returns the files of a package that belong into a distribution."""
    there = (path for path in (ROOT / package).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(ROOT)) for path in there}


def interpreters() -> list[str]:
    """Returns the interpreters of the versions to try, as far as they work here."""
    folders = sorted(Path(sys.base_prefix).parent.glob("*/bin"))  # Where pyenv and others have one for each.
    found = []
    for version in VERSIONS:
        candidates = [*(str(folder / f"python{version}") for folder in folders), f"python{version}"]
        for candidate in candidates:
            path = shutil.which(candidate)
            if path is not None and _works(path, version):
                found.append(path)
                break
    return found


def _works(path: str, version: str) -> bool:
    asked = [path, "-c", "import sys, venv, ssl; print(sys.version)"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.returncode == 0 and done.stdout.startswith(version)


def build(folder: Path) -> tuple[Path, Path]:
    """Builds from a copy of what belongs to the package, so that nothing of the checkout changes or slips in."""
    with tempfile.TemporaryDirectory() as copy:
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, copy)
        for package in PACKAGES:
            shutil.copytree(ROOT / package, f"{copy}/{package}", ignore=shutil.ignore_patterns("__pycache__"))
        subprocess.run([sys.executable, "-m", "build", "--outdir", folder, copy], check=True, stdout=subprocess.DEVNULL)
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, source


def problems(wheel: Path, source: Path) -> list[str]:
    """Returns what the two files lack."""
    wanted = set().union(*map(tracked, PACKAGES))
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = set(archive.namelist())
        (metadata,) = [name for name in in_wheel if name.endswith(".dist-info/METADATA")]
        text = archive.read(metadata).decode()
    with tarfile.open(source) as archive_:
        in_source = {name.partition("/")[2] for name in archive_.getnames()}
    found = [f"{wheel.name} lacks {name}" for name in sorted(wanted - in_wheel)]
    found += [f"{source.name} lacks {name}" for name in sorted(wanted - in_source)]
    strange = {name for name in in_wheel if name.split("/")[0] not in PACKAGES and ".dist-info/" not in name}
    found += [f"{wheel.name} has {name}" for name in sorted(strange)]
    found += [f"{wheel.name}: no {field}" for field in FIELDS if not re.search(rf"^{field}: .", text, re.MULTILINE)]
    return found


def try_out(file: Path, python: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        own = f"{folder}/venv/bin/python"
        subprocess.run([python, "-m", "venv", f"{folder}/venv"], check=True)
        subprocess.run([own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", file], check=True)
        subprocess.run([own, "-c", TRIAL], check=True, cwd=folder, env={"HOME": folder, "PATH": "/usr/bin:/bin"})


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds the distributions and tries them.")
    parser.add_argument("--python", action="append", help="an interpreter to try the wheel with; several can be given")
    parser.add_argument("--folder", default=str(ROOT / "dist"))
    parsed = parser.parse_args()
    folder = Path(parsed.folder)
    shutil.rmtree(folder, ignore_errors=True)
    wheel, source = build(folder)
    if found := problems(wheel, source):
        sys.exit("\n".join(found))
    pythons = parsed.python or interpreters()
    print(f"{wheel.name}, {source.name}: complete; to be tried with {', '.join(pythons)}", flush=True)
    for python in pythons:
        try_out(wheel, python)
    try_out(source, sys.executable)


if __name__ == "__main__":
    main()
