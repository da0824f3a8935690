"""What jobs have in common."""

from __future__ import annotations

import argparse
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from pyspark_leveret.connect import LeveretError
from pyspark_leveret.jobs import NAMES
from pyspark_leveret.jobs.support import common, schedule
from pyspark_leveret.options import BadOption

DOCS = Path(__file__).parents[3] / "docs"
TRACE = """[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_EXCEPTION]
Traceback (most recent call last):
  File "x.py", line 1, in f
pyspark_leveret.connect.LeveretError: cannot subscribe to queue 'a': not found
\tat org.apache.spark"""


def test_a_reason_is_one_line() -> None:
    assert common.reason(RuntimeError(TRACE)) == "cannot subscribe to queue 'a': not found"
    assert common.reason(LeveretError("no node answers")) == "no node answers"
    assert common.reason(BadOption("unknown option 'x'")) == "unknown option 'x'"
    assert common.reason(ValueError("a fault of the program")) is None


def test_files_that_cannot_be_written_are_no_fault_of_the_program() -> None:
    said = common.reason(
        RuntimeError(
            "An error occurred while calling o103.parquet.\n"
            ": org.apache.hadoop.fs.ParentNotDirectoryException: Parent path is not a directory: file:/tmp/lake\n"
            "\tat org.apache.hadoop.fs.FileUtil.checkDest(FileUtil.java:1)"
        )
    )
    parent = "ParentNotDirectoryException: Parent path is not a directory: file:/tmp/lake"
    assert said == f"files cannot be read or written: {parent}"
    full = common.reason(RuntimeError("Caused by: java.io.IOException: No space left on device\n\tat java.base"))
    assert full == "files cannot be read or written: IOException: No space left on device"


def test_a_machine_with_too_much_to_do_is_no_fault_of_the_program() -> None:
    said = common.reason(
        RuntimeError("[STREAM_FAILED] terminated with exception: Python worker failed to connect back.")
    )
    assert said is not None and "ten seconds" in said and "\n" not in said
    assert common.reason(RuntimeError("Python worker exited unexpectedly")) is None


@pytest.mark.parametrize(("text", "expected"), [("90", 90), ("90s", 90), ("15m", 900), (" 1H ", 3_600), ("1d", 86_400)])
def test_times_of_day(text: str, expected: int) -> None:
    assert common.seconds(text) == expected


@pytest.mark.parametrize("text", ["", "0", "0h", "h", "1.5h", "-1", "1w", "1 h"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a number of seconds, nor a time"):
        common.seconds(text)


@pytest.mark.parametrize(
    ("ended", "due"),
    [
        (101.0, 160.0),
        (159.9, 160.0),
        (160.0, 220.0),
        (500.0, 520.0),  # It took more than five minutes.
        (50.0, 160.0),  # Somebody has set the clock.
    ],
)
def test_a_schedule_leaves_out_what_a_long_run_has_missed(ended: float, due: float) -> None:
    assert schedule.next_time(100.0, 60, ended) == due


@pytest.mark.parametrize("name", NAMES)
def test_help_names_the_ports_that_a_job_asks(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    from leveret.cli.pipeline import pipeline

    assert pipeline([name, "--help"]) == 0
    [servers] = re.findall(r"  --servers SERVERS\s+(.*?)\n  --", capsys.readouterr().out, re.DOTALL)
    assert ("amqp(s)://host:port" in servers) == (name == "replay") != ("management port" in servers)


@pytest.mark.parametrize("name", NAMES)
def test_every_job_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    from leveret.cli.pipeline import pipeline

    assert pipeline([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"leveret pipeline {name} --" in text.partition("examples:")[2]
    assert "--servers" in text


def parser_of(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    import_module(f"pyspark_leveret.jobs.{name}").add_arguments(parser)
    common.add_access(parser)
    common.add_session(parser)
    return parser


def commands(text: str) -> list[list[str]]:
    """The words after `leveret pipeline` of each command in a text."""
    joined = re.sub(r"\\\n\s*", "", text)
    found = re.findall(r"^\s*(?:\$ )?leveret pipeline (.*?)(?: {2,}.*)?$", joined, re.MULTILINE)
    return [shlex.split(one) for one in found]


@pytest.mark.parametrize("name", NAMES)
def test_examples_are_understood(name: str) -> None:
    found = commands(import_module(f"pyspark_leveret.jobs.{name}").EXAMPLES)
    assert len(found) >= 2
    for job, *words in found:
        assert job == name
        parser_of(name).parse_args(words)


def test_every_job_is_documented() -> None:
    text = (DOCS / "pipeline.md").read_text()
    assert [name for name in NAMES if f"## {name}\n" not in text] == []
    for name, *words in commands(text):
        if "--help" not in words:
            parser_of(name).parse_args(words)
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (DOCS / target).exists(), target


@pytest.mark.parametrize("name", ["audit", "replication", "rollup"])
def test_without_a_journal_spark_is_not_started(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import leveret.testing
    from leveret.cli.pipeline import pipeline

    def never(*_: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(common, "session", never)
    with leveret.testing.broker(config="management.tcp.port = 0") as broker:
        port = broker.ports["management"]
        words = [name, "--servers", f"http://127.0.0.1:{port}", "--report-to", "nowhere", "--out", str(tmp_path)]
        assert pipeline(words) in (2, 69)
    assert "there is no journal to read" in capsys.readouterr().err
