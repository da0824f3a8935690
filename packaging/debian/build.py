"""Builds a package for Debian and Ubuntu, for the Python and the architecture of this machine.

    python packaging/debian/build.py [--python /usr/bin/python3] [--folder dist]

It needs dpkg-deb, pip, and the packages that Leveret needs from pip's index: Debian's own are too old, so that copies
of them are in the package, in /opt/leveret. With Python 3.11 (Debian 12) they are the versions and bytes of the image,
`docker/requirements.lock`; with another Python the newest that pyproject.toml allows.

`dpkg --install` then makes the user leveret, its folders and /etc/leveret/leveret.conf, and starts the service.
RabbitMQ's programs are in /opt/leveret/bin under their names, outside of the path: RabbitMQ may be installed beside it.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
HOME = "opt/leveret"
LOCKED = (3, 11)  # The Python of `requirements.lock`.
SCRIPTS = ("postinst", "prerm", "postrm")
# What of packaging/ goes where. Files in /etc stay as their owner has changed them.
FILES = {
    "debian/leveretctl": "usr/bin/leveretctl",
    "systemd/leveret.conf": "etc/leveret/leveret.conf",
    "systemd/leveret.service": "usr/lib/systemd/system/leveret.service",
}
PROGRAM = """\
#!/{home}/bin/python3 -I
import sys

from {module} import {function}

sys.exit({function}())
"""


def version_of(python: str) -> tuple[int, int]:
    asked = "import sys; print(sys.version_info[0], sys.version_info[1])"
    major, minor = subprocess.run([python, "-c", asked], check=True, capture_output=True, text=True).stdout.split()
    return int(major), int(minor)


def install_packages(stage: Path, python: str, version: tuple[int, int]) -> None:
    """Lays out /opt/leveret as an environment of its own, by the paths that it will have once it is installed."""
    home = stage / HOME
    packages = home / "lib" / f"python{version[0]}.{version[1]}" / "site-packages"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "python3").symlink_to(python)
    (home / "pyvenv.cfg").write_text(f"home = {Path(python).parent}\ninclude-system-site-packages = false\n")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    pip += ["--target", str(packages), "--python-version", ".".join(map(str, version)), "--only-binary=:all:"]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", folder, source(Path(folder))], check=True,
                       stdout=subprocess.DEVNULL)  # fmt: skip
        (wheel,) = Path(folder).glob("*.whl")
        if version == LOCKED:
            lock = ROOT / "packaging" / "docker" / "requirements.lock"
            subprocess.run([*pip, "--no-deps", "--require-hashes", "-r", lock], check=True)
            subprocess.run([*pip, "--no-deps", wheel], check=True)
        else:
            subprocess.run([*pip, wheel], check=True)
    shutil.rmtree(packages / "bin", ignore_errors=True)  # They name the Python of this script.


def source(folder: Path) -> Path:
    """Copies what the wheel is built from, so that nothing of the checkout changes."""
    copy = folder / "source"
    for package in ("leveret", "pyspark_leveret"):
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    return copy


def write_programs(stage: Path) -> None:
    programs = stage / HOME / "bin"
    for name, place in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"].items():
        module, _, function = place.partition(":")
        write(programs / name, PROGRAM.format(home=HOME, module=module, function=function), 0o755)
    sys.path.insert(0, str(ROOT))
    from leveret.cli.names import PROGRAMS, SCRIPT

    for name in PROGRAMS:
        write(programs / name, SCRIPT.format(python=f"/{HOME}/bin/python3", program=name), 0o755)
    (stage / "usr" / "bin").mkdir(parents=True)
    (stage / "usr" / "bin" / "leveret").symlink_to(f"/{HOME}/bin/leveret")


def write(path: Path, text: str, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def build(python: str, folder: Path) -> Path:
    from leveret import __version__

    version = version_of(python)
    with tempfile.TemporaryDirectory() as temporary:
        stage = Path(temporary) / "leveret"
        install_packages(stage, python, version)
        write_programs(stage)
        for name, target in FILES.items():
            given = ROOT / "packaging" / name
            write(stage / target, given.read_text(), given.stat().st_mode & 0o755)
        write(stage / "usr/share/doc/leveret/copyright", (ROOT / "LICENSE").read_text(), 0o644)
        architecture = subprocess.run(
            ["dpkg", "--print-architecture"], check=True, capture_output=True, text=True
        ).stdout.strip()
        size = sum(file.lstat().st_size for file in stage.rglob("*")) // 1024
        control = (FOLDER / "control").read_text()
        for name, value in {
            "VERSION": __version__, "ARCHITECTURE": architecture, "PYTHON": f"{version[0]}.{version[1]}",
            "NEXT": f"{version[0]}.{version[1] + 1}", "KIBIBYTES": str(size),
        }.items():  # fmt: skip
            control = control.replace(f"@{name}@", value)
        write(stage / "DEBIAN" / "control", control, 0o644)
        kept = sorted(target for target in FILES.values() if target.startswith("etc/"))
        write(stage / "DEBIAN" / "conffiles", "".join(f"/{name}\n" for name in kept), 0o644)
        for name in SCRIPTS:
            write(stage / "DEBIAN" / name, (FOLDER / name).read_text(), 0o755)
        folder.mkdir(parents=True, exist_ok=True)
        made = folder / f"leveret_{__version__}_{architecture}.deb"
        for path in [stage, *stage.rglob("*")]:
            if path.is_dir():
                path.chmod(0o755)  # Whatever the umask is.
        pack = ["dpkg-deb", "--root-owner-group", "--build", str(stage), str(made)]
        subprocess.run(pack, check=True, stdout=subprocess.DEVNULL)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds a package for Debian and Ubuntu.")
    parser.add_argument("--python", default="/usr/bin/python3", help="the machine's own Python (/usr/bin/python3)")
    parser.add_argument("--folder", type=Path, default=ROOT / "dist")
    parsed = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    print(build(parsed.python, parsed.folder))


if __name__ == "__main__":
    main()
