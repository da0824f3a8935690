"""Runs the blocks of one page, in order, as a reader would: `python -m tests.support.pages.run PAGE`.

The page has a machine of its own: Linux namespaces give it an empty /tmp, a network in which every port is free, and a
process table that ends with the run. So commands run as they stand on the page. Only these are not what they seem:
`leveret server`, `leveret witness` and `leveret cluster start`, which a reader runs in a terminal of their own, return
when they are ready; and `pip install` does nothing, because everything is installed.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import io
import os
import shutil
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from tests.support.pages.blocks import ROOT, Block, blocks, matches

INSIDE: Final = "LEVERET_PAGES_INSIDE"
BLOCK_S: Final = 60
NOT_SUPPORTED: Final = 75
_IFF_UP_RUNNING: Final = 0x41
_SIOCSIFFLAGS: Final = 0x8914

LEVERET: Final = """\
#!/bin/bash
case "$1 $2" in
  server*|witness*|"cluster start") ;;
  *) exec {python} -m leveret "$@" ;;
esac
output=$(mktemp {logs}/XXXXXX)
setsid {python} -m leveret "$@" >"$output" 2>"$output.log" </dev/null &
# Reminders that a node is not ready yet come on a busy machine only, and are in no page.
for _ in $(seq 600); do
  if grep -q "^ready" "$output"; then sleep 0.02; grep -v "^waiting for " "$output"; exit 0; fi
  if ! kill -0 $! 2>/dev/null; then cat "$output" "$output.log"; wait $!; exit $?; fi
  sleep 0.05
done
cat "$output.log"; exit 75
"""


class Failed(Exception):
    """A block did not do what its page says."""


@cache
def why_not() -> str | None:
    """Returns why there can be no namespaces here, or None."""
    if shutil.which("unshare") is None:
        return "the program `unshare` (package util-linux) is missing"
    done = subprocess.run([*_unshare(), "true"], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"no right to make namespaces: {done.stderr.strip()}"


def _unshare() -> list[str]:
    options = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return ["unshare", *options, *([] if os.geteuid() == 0 else ["--map-root-user"])]


def in_namespaces(page: Path, seconds: float) -> subprocess.CompletedProcess[str]:
    """Runs this module for a page, in namespaces."""
    environment = {**os.environ, INSIDE: "1", "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # Each of the many short commands would compile all it imports.
    command = [*_unshare(), sys.executable, "-m", __name__, str(page)]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )


# -- Inside --------------------------------------------------------------------------------------------------------


def _prepare() -> dict[str, str]:
    """Makes /tmp empty and the loopback interface work, and returns the environment of commands."""
    if ROOT.is_relative_to("/tmp"):
        subprocess.run(["mount", "-t", "tmpfs", "none", "/dev/shm"], check=True)
        subprocess.run("mkdir /dev/shm/tree && mount --rbind /tmp /dev/shm/tree", shell=True, check=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", "/tmp"], check=True)
    for name in ("etc", "var"):  # Pages write there; what they write is gone at the end.
        above, work = Path(f"/tmp/.over/{name}"), Path(f"/tmp/.over/.{name}")
        above.mkdir(parents=True)
        work.mkdir()
        options = f"lowerdir=/{name},upperdir={above},workdir={work}"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, f"/{name}"], check=True)
    if ROOT.is_relative_to("/tmp"):
        ROOT.mkdir(parents=True)
        inner = ROOT.relative_to("/tmp")
        subprocess.run(["mount", "--rbind", f"/dev/shm/tree/{inner}", str(ROOT)], check=True)
    with socket.socket() as any_socket:
        request = array.array("B", b"lo".ljust(16, b"\0") + _IFF_UP_RUNNING.to_bytes(2, sys.byteorder) + bytes(22))
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)
    home = Path("/tmp/home")
    programs, logs = home / "bin", home / "logs"
    for folder in (programs, logs, home / "page"):
        folder.mkdir(parents=True)
    for program, text in (
        ("leveret", LEVERET.format(python=sys.executable, logs=logs)),
        ("leveretctl", f'#!/bin/sh\nexec {sys.executable} -m leveret.cli.ctl "$@"\n'),
        ("python", f'#!/bin/sh\nexec {sys.executable} "$@"\n'),
        ("pytest", f'#!/bin/sh\nexec {sys.executable} -m pytest -p no:cacheprovider "$@"\n'),
        ("celery", f'#!/bin/sh\nexec {sys.executable} -m celery "$@"\n'),
        ("pip", "#!/bin/sh\nexit 0\n"),
    ):
        file = programs / program
        file.write_text(text)
        file.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LEVERET_", "RABBITMQ_"))}
    return {**kept, "HOME": str(home), "PATH": f"{programs}:{kept['PATH']}", "PYTHONPATH": str(ROOT)}


class Reader:
    """Runs blocks one after the other; what one leaves behind, the next one finds."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        self.folder = Path(environment["HOME"]) / "page"
        self.given: dict[str, Any] = {"__name__": "page"}
        self.output = ""
        os.chdir(self.folder)

    def run(self, block: Block) -> str:
        """Returns a word about what was done."""
        if block.is_output:
            if not matches(block.text, self.output, "output, digits vary" in block.comments):
                raise Failed(f"the output is\n{self.output}")
            return "output"
        if not block.is_run:
            return "shown"
        missing = [one for words in block.said("needs:") for one in words.split() if shutil.which(one) is None]
        if missing:
            self.output = ""
            return f"skipped, because {', '.join(missing)} is missing"
        for one in block.comments:
            if one.startswith("before, python:"):
                self._python(_dedented(one.removeprefix("before, python:")))
            elif one.startswith("before:"):
                self._shell(_dedented(one.removeprefix("before:")))
        fails = "fails" in block.comments
        if block.language == "sh":
            self._shell(block.text, fails)
        elif block.language == "console":
            self._console(block)
        elif "\ndef test_" in f"\n{block.text}":
            Path("test_page.py").write_text(block.text)
            self._shell("python -m pytest -q -p no:cacheprovider test_page.py", fails)
        else:
            self._python(block.text)
        return "run"

    def _shell(self, text: str, fails: bool = False) -> None:
        output, variables = self.folder.parent / "output", self.folder.parent / "variables"
        text += f"\nenv -0 > {variables}"
        with output.open("w+b") as file:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", text], env=self.environment, stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, timeout=BLOCK_S, check=False,
            )  # fmt: skip
        self.output = output.read_text(errors="replace")
        if (done.returncode != 0) != fails:
            raise Failed(f"exit code {done.returncode} of\n{text}\n{self.output}{self._logs()}")
        if done.returncode == 0:
            pairs = (one.partition("=") for one in variables.read_text().split("\0") if one)
            self.environment = {name: value for name, _, value in pairs}

    def _console(self, block: Block) -> None:
        for part in f"\n{block.text}".split("\n$ ")[1:]:
            lines = part.splitlines()
            words = 1
            while lines[words - 1].endswith("\\"):
                words += 1
            self._shell("\n".join(lines[:words]))
            expected = "\n".join(lines[words:])
            if expected.strip() and not matches(expected, self.output, digits_vary=True):
                raise Failed(f"the output of {lines[0]} is\n{self.output}")

    def _python(self, text: str) -> None:
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(text, "page", "exec"), self.given)
        except Exception as error:
            raise Failed(f"{traceback.format_exc()}\n{printed.getvalue()}{self._logs()}") from error
        self.output = printed.getvalue()

    def _logs(self) -> str:
        logs = sorted((self.folder.parent / "logs").glob("*.log"))
        return "".join(f"\n--- {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in logs)


def _dedented(text: str) -> str:
    import textwrap

    return textwrap.dedent(text.lstrip(" ")).strip()


def main(page: Path) -> int:
    if INSIDE not in os.environ:
        print("this is to be run in namespaces: see `in_namespaces`", file=sys.stderr)
        return NOT_SUPPORTED
    reader = Reader(_prepare())
    os.environ.update(reader.environment)
    for block in blocks(page):
        try:
            print(f"{page.name}:{block.line} {block.language}: {reader.run(block)}", flush=True)
        except (Failed, subprocess.TimeoutExpired) as error:
            print(f"{page.relative_to(ROOT)}:{block.line}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
