"""What a job has found last, told to the broker: its page shows the results of all jobs, wherever they ran.

A command tells that it has begun, how far a stream has come (every `EVERY_S`), and how it ended. Jobs say what there is
to say with `found`; they may do so several times, and the last word counts. Functions that are imported, and not
started as a command, tell nobody.

Nothing here makes a job fail: its files are what it is run for. Who is not heard says so, once, to whoever watches.
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


class Teller:
    """For one command. `given` are options of `format("leveret")`, `to` other servers, or `NOWHERE`."""

    def __init__(self, job: str, given: Mapping[str, str], to: str | None, say: Callable[[str], None]) -> None:
        self.job = job
        self.say = say
        self.value: dict[str, Any] = {"started": _now_ms(), "figures": {}}
        self.state = ""  # Worse than what the exit code says.
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
        """Now."""
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
        """`why`: what it failed for."""
        if why is not None:
            self.value |= {"summary": why[:SUMMARY_CHARACTERS]}
        elif code:
            self.value.setdefault("summary", f"ended with exit code {code}")
        self.tell(self.state or ("failed" if code or why is not None else "ok"))

    def stopped(self, how_to_go_on: str, code: int) -> None:
        """By somebody. `code`: 0 if that is how it ends."""
        self.value["summary"] = f"stopped; {how_to_go_on}"[:SUMMARY_CHARACTERS]
        self.tell(self.state or ("warning" if code else "ok"))

    def _give_up(self, why: str) -> None:
        self.access = None
        self.say(f"the result is not shown at the broker: {why}")


_current: list[Teller] = []  # A process is one command at most.


def begin(teller: Teller) -> Teller:
    _current[:] = [teller]
    teller.tell("running")
    return teller


def found(
    summary: str,
    figures: Mapping[str, float | str] | None = None,
    *,
    state: str = "",
    report: str = "",
    detail: str = "",
) -> None:
    """What there is to say of the job so far. `state`, if it is not what the exit code will say."""
    for teller in _current:
        value = teller.value
        value["summary"] = summary[:SUMMARY_CHARACTERS]
        value["figures"] |= figures or {}
        value |= {"report": report} if report else {}
        value |= {"detail": detail[:DETAIL_CHARACTERS]} if detail else {}
        teller.state = state


def show() -> None:
    """Something has been found that somebody should know of now."""
    for teller in _current:
        teller.tell(teller.state or "running")


def came(batch: int, rows: int) -> None:
    """A stream has done one more batch."""
    for teller in _current:
        figures = teller.value["figures"]
        figures["rows"] = figures.get("rows", 0) + rows
        figures["last batch"] = batch
        teller.tell_sometimes()


def _now_ms() -> int:
    return int(time.time() * 1000)
