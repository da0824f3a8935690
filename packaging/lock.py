"""Writes the lock files of the image: each dependency with one version, and the hashes of its wheels on PyPI.

    python packaging/lock.py            the newest versions that pyproject.toml allows

`docker/requirements.lock` has what a node needs to run, `docker/build.lock` what it takes to build the package. pip
installs nothing from them whose bytes are others (`--require-hashes`). pip chooses the versions; the hashes are those
of all wheels for Linux and the image's Python, so that the files hold for every architecture.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parent.parent
INDEX = "https://pypi.org/simple"
WHEEL = re.compile(r"-(?:cp311-cp311|cp3\d*-abi3|py3-none|py2\.py3-none)-(?:any|[a-z0-9_.]*linux[a-z0-9_.]*)\.whl$")
HEAD = "# Made by packaging/lock.py; see there.\n"


def resolved(wanted: list[str]) -> dict[str, str]:
    """Versions by name, with all that these need in turn."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--dry-run",
        "--ignore-installed",
        "--only-binary=:all:",
    ]
    done = subprocess.run([*command, "--report", "-", *wanted], check=True, stdout=subprocess.PIPE, text=True)
    found = [one["metadata"] for one in json.loads(done.stdout)["install"]]
    return {one["name"].lower(): one["version"] for one in found}


def hashes(name: str, version: str) -> list[str]:
    with urllib.request.urlopen(f"{INDEX}/{name}/", timeout=60) as answer:
        links = re.findall(r'href="[^"]*/([^"/#]+)#sha256=([0-9a-f]{64})"', answer.read().decode())
    start = f"{name.replace('-', '_')}-{version}-"
    found = sorted({digest for file, digest in links if file.lower().startswith(start) and WHEEL.search(file)})
    if not found:
        raise SystemExit(f"{name} {version} has no wheels for the image on {INDEX}")
    return found


def write(path: Path, wanted: list[str]) -> None:
    lines = [HEAD]
    for name, version in sorted(resolved(wanted).items()):
        digests = " \\\n".join(f"    --hash=sha256:{one}" for one in hashes(name, version))
        lines.append(f"{name}=={version} \\\n{digests}\n")
    path.write_text("".join(lines))
    print(f"{path.relative_to(ROOT)}: {len(lines) - 1} packages")


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    write(ROOT / "packaging/docker/requirements.lock", project["project"]["dependencies"])
    write(ROOT / "packaging/docker/build.lock", project["build-system"]["requires"])


if __name__ == "__main__":
    main()
