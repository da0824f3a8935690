"""The wheel and the source distribution: what is in them, and that they work where nothing else is."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def test_all_files_of_the_package_belong_to_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]
    folders = [path for path in (ROOT / "leveret").rglob("*") if path.is_dir() and path.name != "__pycache__"]
    with_code = {path for path in folders if any(path.glob("*.py"))}
    assert all((path / "__init__.py").exists() for path in with_code)  # Others are not found.
    for package in ("leveret", "pyspark_leveret"):
        for path in (ROOT / package).rglob("*"):
            if path.is_file() and path.suffix not in (".py", ".pyc"):
                name = str(path.relative_to(ROOT / package))
                assert any(fnmatch(name, pattern) for pattern in patterns.get(package, ())), name


@pytest.mark.long
def test_both_are_complete_and_work_in_a_fresh_environment(tmp_path: Path) -> None:
    """With each Python from 3.11 on that is here. `make dist` does the same."""
    done = subprocess.run(
        [sys.executable, ROOT / "packaging" / "dist.py", "--folder", tmp_path / "dist"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert f"Python {sys.version.split()[0]}: leveret" in done.stdout
