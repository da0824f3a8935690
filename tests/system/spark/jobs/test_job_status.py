"""What jobs tell a real broker of, without Spark: a job's result is there for its page, and no job fails for it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any
from urllib.request import Request, urlopen

import pytest

from leveret.cli.pipeline import pipeline
from pyspark_leveret.connect import LeveretError
from pyspark_leveret.jobs import balance, replay
from pyspark_leveret.jobs.support import common, job_status
from tests.support.servers import Server

BALANCE = ("balance", "--by", "messages")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No session, and nothing is left behind of the command."""
    monkeypatch.setattr(common, "session", lambda *given: SimpleNamespace(stop=lambda: None))
    monkeypatch.setattr(job_status, "_current", [])
    monkeypatch.setattr(job_status, "PATIENCE_S", 0.1)


def url(broker: Server) -> str:
    return f"http://127.0.0.1:{broker.management_port}"


def shown(broker: Server, name: str) -> dict[str, Any]:
    request = Request(f"{url(broker)}/api/leveret/jobs", headers={"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="})
    with urlopen(request) as answer:
        jobs = {job["name"]: job for job in json.load(answer)}
    found: dict[str, Any] = jobs.get(name, {})
    return found


def test_a_job_is_shown_while_it_runs_and_how_it_ended(
    data_broker: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []

    def run(spark: object, parsed: object) -> int:
        seen.append(shown(data_broker, name))
        job_status.found("2 of 3 queues would move", {"moves": 2}, report="/data/plan.json")
        return 0

    monkeypatch.setattr(balance, "run", run)
    assert pipeline([*BALANCE, "--servers", url(data_broker), "--report-as", name]) == 0
    assert seen[0]["state"] == "running" and "finished" not in seen[0]
    found = shown(data_broker, name)
    assert found["state"] == "ok" and found["summary"] == "2 of 3 queues would move"
    assert found["figures"] == {"moves": 2} and found["report"] == "/data/plan.json"
    assert seen[0]["started"] == found["started"] <= found["finished"]


@pytest.mark.parametrize(
    ("code", "error", "state", "summary"),
    [
        (69, None, "failed", "ended with exit code 69"),
        (0, LeveretError("no node answers"), "failed", "no node answers"),
    ],
)
def test_a_job_that_fails_says_why(
    data_broker: Server, name: str, monkeypatch: pytest.MonkeyPatch,
    code: int, error: Exception | None, state: str, summary: str,
) -> None:  # fmt: skip
    def run(spark: object, parsed: object) -> int:
        if error is not None:
            raise error
        return code

    monkeypatch.setattr(balance, "run", run)
    assert pipeline([*BALANCE, "--servers", url(data_broker), "--report-as", name]) == 69
    assert (shown(data_broker, name)["state"], shown(data_broker, name)["summary"]) == (state, summary)


def test_what_is_worse_than_the_exit_code_says(data_broker: Server, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(spark: object, parsed: object) -> int:
        job_status.found("cannot say", state="warning")
        return 2

    monkeypatch.setattr(balance, "run", run)
    assert pipeline([*BALANCE, "--servers", url(data_broker), "--report-as", name]) == 2
    assert shown(data_broker, name)["state"] == "warning"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--report-to", "127.0.0.1:1"], "no node answers at 127.0.0.1:1"),
        (["--password", "wrong"], "the password is wrong"),
        (["--report-as", "x" * 101], "the name of a job is text of 1 to 100 characters"),
    ],
)
def test_a_job_does_not_fail_because_nobody_listens(
    data_broker: Server,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    said: str,
) -> None:
    monkeypatch.setattr(balance, "run", lambda spark, parsed: 0)
    assert pipeline([*BALANCE, "--servers", url(data_broker), *more]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "is not shown at the broker" in line]
    assert said in line


def test_who_does_not_want_it_is_not_told_of(
    data_broker: Server, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(balance, "run", lambda spark, parsed: 0)
    where = ["--servers", url(data_broker), "--report-as", name]
    assert pipeline([*BALANCE, *where, "--report-to", "nowhere"]) == 0
    monkeypatch.setattr(replay, "run", lambda spark, parsed: 0)
    assert pipeline(["replay", "--from", "/lake", "--servers", "127.0.0.1:1", "--report-as", name]) == 0
    assert shown(data_broker, name) == {} and "not shown" not in capsys.readouterr().err


def test_a_stream_tells_how_far_it_is_now_and_then(data_broker: Server, name: str) -> None:
    status = job_status.begin(job_status.JobStatus(name, {"servers": url(data_broker)}, None, lambda text: None))
    job_status.came(0, 100)
    assert "rows" not in shown(data_broker, name)["figures"]  # It was told to run a moment ago.
    status.told_at -= job_status.EVERY_S
    job_status.came(1, 50)
    found = shown(data_broker, name)
    assert found["state"] == "running" and found["figures"] == {"rows": 150, "last batch": 1}
