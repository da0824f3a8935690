"""Reports the state of a job to the broker, whose page shows the results of all jobs, wherever they ran.

A command reports that it has begun, how far a stream has come (every `EVERY_S`), and how it ended. Jobs set their
result with `found`; they may do so several times, and the last one counts. Functions that are imported, and not started
as a command, report nothing.

No error here makes a job fail: a job is run for its files. If a report fails, a line says so, once, and no more follow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from pyspark_leveret.connect import LeveretError, explained, new_client
from pyspark_leveret.options import Access, BadOption, Options

EVERY_S: Final = 30.0
PATIENCE_S: Final = 5.0
NOWHERE: Final = "nowhere"
SUMMARY_CHARACTERS: Final = 500
DETAIL_CHARACTERS: Final = 2_000


class JobStatus:
    """The status of one command. `given` are options of `format("leveret")`, `to` other servers, or `NOWHERE`."""

    def __init__(self, job: str, given: Mapping[str, str], to: str | None, say: Callable[[str], None]) -> None:
        self.job = job
        self.say = say
        self.value: dict[str, Any] = {"started": _now_ms(), "figures": {}}
        self.state = ""  # Set by the job, instead of what the exit code says.
        self.told_at = 0.0
        self.access: Access | None = None
        if to == NOWHERE:
            return
        try:
            servers = {"servers": to} if to is not None else {}
            self.access = Options({"subscribe": "-", **given, **servers}).source(streaming=False).access
        except BadOption as error:
            self._give_up(str(error))

    def tell(self, state: str) -> None:
        """Reports now."""
        access, self.told_at = self.access, time.monotonic()
        if access is None:
            return
        finished = {} if state == "running" else {"finished": _now_ms()}
        try:
            with explained(access, "tell the broker of it"), new_client(access, PATIENCE_S) as client:
                client.report_job(self.job, {**self.value, **finished, "state": state})
        except LeveretError as error:
            self._give_up(str(error))

    def tell_sometimes(self) -> None:
        if time.monotonic() - self.told_at >= EVERY_S:
            self.tell(self.state or "running")

    def end(self, code: int, why: str | None = None) -> None:
        """Reports the end. `why`: the reason of a failure."""
        if why is not None:
            self.value |= {"summary": why[:SUMMARY_CHARACTERS]}
        elif code:
            self.value.setdefault("summary", f"ended with exit code {code}")
        self.tell(self.state or ("failed" if code or why is not None else "ok"))

    def renew(self) -> None:
        """Reports that the job begins once more."""
        self.value = {"started": _now_ms(), "figures": {}}
        self.state = ""
        self.tell("running")

    def stopped(self, how_to_go_on: str, code: int) -> None:
        """Reports that a signal stopped the job. `code`: 0 if the job ends only that way."""
        self.value["summary"] = f"stopped; {how_to_go_on}"[:SUMMARY_CHARACTERS]
        self.tell(self.state or ("warning" if code else "ok"))

    def _give_up(self, why: str) -> None:
        self.access = None
        self.say(f"the result is not shown at the broker: {why}")


_current: list[JobStatus] = []  # A process runs one command; empty if jobs are called as functions.


def begin(status: JobStatus) -> JobStatus:
    """Makes this the status of the process, and reports it as running."""
    _current[:] = [status]
    status.tell("running")
    return status


def found(
    summary: str,
    figures: Mapping[str, float | str] | None = None,
    *,
    state: str = "",
    report: str = "",
    detail: str = "",
) -> None:
    """Sets the result of the job so far. `state`: if it is not what the exit code will say."""
    for status in _current:
        value = status.value
        value["summary"] = summary[:SUMMARY_CHARACTERS]
        value["figures"] |= figures or {}
        value |= {"report": report} if report else {}
        value |= {"detail": detail[:DETAIL_CHARACTERS]} if detail else {}
        status.state = state


def show() -> None:
    """Reports the result so far without waiting for the next regular report."""
    for status in _current:
        status.tell(status.state or "running")


def came(batch: int, rows: int) -> None:
    """Counts one more batch of a stream."""
    for status in _current:
        figures = status.value["figures"]
        figures["rows"] = figures.get("rows", 0) + rows
        figures["last batch"] = batch
        status.tell_sometimes()


def _now_ms() -> int:
    return int(time.time() * 1000)
