"""Ctrl-C and SIGTERM end a job in order. Spark is played by a process that complains without end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator

import pytest

PLAY = """
    import subprocess, sys, threading
    from leveret.cli import pipeline
    from pyspark_leveret.jobs import archive
    from pyspark_leveret.jobs.support import common, signals

    class Spark:
        def stop(self):
            print("stopped by", threading.current_thread() is not threading.main_thread(), flush=True)
            self.java.kill()

    def session(name, master, settings, is_short):
        complain = "import sys\\nwhile 1: print('at java', file=sys.stderr)"
        Spark.java = subprocess.Popen([sys.executable, "-uc", complain])
        return Spark()

    def run(spark, parsed):
        ENDING
        print("running", flush=True)
        threading.Event().wait()

    common.session, archive.run = session, run
    sys.exit(pipeline.pipeline(["archive", "--to", "/nowhere", "--report-to", "nowhere"]))
"""


@pytest.fixture
def started(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    script = textwrap.dedent(PLAY).replace("ENDING", request.param)
    # A process group of its own, as a shell gives it to a command; a terminal's signal goes to all of it.
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    yield process
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def stop(process: subprocess.Popen[str], number: signal.Signals) -> tuple[str, list[str]]:
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == "running\n"
    assert process.stderr.readline() == "starting Spark ...\n"
    assert process.stderr.readline() == "at java\n"
    process.send_signal(number)
    limit = threading.Timer(60, process.kill)
    limit.start()
    # Not by `communicate`, which does not know what is in the buffers of the lines that were read.
    told, out = process.stderr.read(), process.stdout.read()
    process.wait()
    limit.cancel()
    return out, [line for line in told.splitlines() if line not in ("", "at java")]


@pytest.mark.parametrize("started", ["pass"], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_job_that_is_stopped_says_so_in_a_line(started: subprocess.Popen[str], number: signal.Signals) -> None:
    out, told = stop(started, number)
    assert out == "stopped by True\n"  # By another thread: the main one's question to Java is still open.
    assert told == [
        "leveret pipeline archive: stopped; it had not come to its end, and begins anew when it is started again"
    ]
    assert started.returncode == 130


@pytest.mark.parametrize("started", ["signals.if_stopped(signals.GOES_ON, endless=True)"], indirect=True)
def test_who_runs_until_he_is_stopped_has_not_failed(started: subprocess.Popen[str]) -> None:
    _, told = stop(started, signal.SIGTERM)
    assert told == ["leveret pipeline archive: stopped; the same command goes on where it was"]
    assert started.returncode == 0


@pytest.mark.parametrize("started", ["pass"], indirect=True)
def test_nothing_is_passed_on_behind_the_last_line(started: subprocess.Popen[str]) -> None:
    assert started.stdout is not None and started.stderr is not None
    assert started.stdout.readline() == "running\n"
    started.send_signal(signal.SIGINT)
    _, told = started.communicate(timeout=60)
    assert told.splitlines()[-1].startswith("leveret pipeline archive: stopped; ")


NOISE = """
    import subprocess, sys
    from pyspark_leveret.jobs.support import signals
    with signals.stoppable():
        print("one", file=sys.stderr)
        subprocess.run([sys.executable, "-c", "import sys; print('x' * 300000 + ' two', file=sys.stderr)"])
    print("three", file=sys.stderr)
"""


def test_all_that_was_said_comes_out() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(NOISE)], stderr=subprocess.PIPE, text=True, timeout=60, check=True
    )
    assert done.stderr == "one\n" + "x" * 300000 + " two\nthree\n"
