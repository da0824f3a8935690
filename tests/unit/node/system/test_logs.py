"""What stands in a log file, when another one is begun, and which levels hold."""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

from leveret.node.config.settings import LOG_CATEGORIES, LOG_LEVELS, LogForm, Rotation, Settings, log_levels
from leveret.node.system import logs
from leveret.node.system.logs import FileOutput, LogFormatter, NoLogFile, next_rotation

NOON = datetime(2026, 3, 4, 12, 30, 15)  # A Wednesday.


@pytest.fixture(autouse=True)
def undisturbed() -> Iterator[None]:
    """The loggers are the process's: what a test does to them must not last."""
    found = {name: logs.logger_of(name) for name in LOG_CATEGORIES}
    before = {name: one.level for name, one in found.items()}
    root = logging.getLogger(logs.ROOT)
    handlers, propagate = list(root.handlers), root.propagate
    yield
    for handler in list(root.handlers):
        root.removeHandler(handler)
        if handler not in handlers:
            handler.close()
    for handler in handlers:
        root.addHandler(handler)
    root.propagate = propagate
    for name, level in before.items():
        found[name].setLevel(level)


def record(text: str, category: str = "connection", level: int = logging.INFO) -> logging.LogRecord:
    logging.addLevelName(logging.INFO, "info")
    logging.addLevelName(logging.WARNING, "warning")
    made = logging.LogRecord(f"leveret.{category}", level, "file.py", 1, text, None, None)
    made.created = 1_700_000_000.25
    return made


# -- Forms ---------------------------------------------------------------------------------------------------------


def test_a_line_of_text() -> None:
    line = LogFormatter(LogForm(), 7).format(record("one\ntwo"))
    first, second = line.split("\n")
    stamp = datetime.fromtimestamp(1_700_000_000.25).astimezone().isoformat(" ", "microseconds")
    assert first == f"{stamp} [info] <0.7.0> one"
    assert second == f"{stamp} [info] <0.7.0> two"


def test_json_has_the_keys_of_rabbitmq() -> None:
    entry = json.loads(LogFormatter(LogForm(json=True), 7).format(record('say "a"\nb\udcff')))
    assert list(entry) == ["time", "level", "msg", "domain", "pid"]
    assert entry["msg"] == 'say "a"\nb?'
    assert (entry["level"], entry["domain"], entry["pid"]) == ("info", "rabbitmq.connection", "<0.7.0>")


@pytest.mark.parametrize(
    ("form", "head"),
    [
        (LogForm(time="epoch_secs"), "1700000000 [info]"),
        (LogForm(time="epoch_usecs", level="uc"), "1700000000250000 [INFO]"),
        (LogForm(time="epoch_secs", level="lc3"), "1700000000 [inf]"),
        (LogForm(time="epoch_secs", level="uc4"), "1700000000 [INFO]"),
    ],
)
def test_other_forms(form: LogForm, head: str) -> None:
    assert LogFormatter(form, 1).format(record("x")) == f"{head} <0.1.0> x"


def test_times_with_and_without_a_zone() -> None:
    assert "T" in str(LogFormatter(LogForm(time="rfc3339_T"), 1).time_of(0.0))
    assert str(LogFormatter(LogForm(time="lager_default"), 1).time_of(0.5)).endswith(".500")


def test_single_line() -> None:
    assert LogFormatter(LogForm(time="epoch_secs", single_line=True), 1).format(record("a\nb")).endswith("> a b")


def test_a_fault_is_shown_with_where() -> None:
    try:
        raise ValueError("no")
    except ValueError as error:
        made = record("failed")
        made.exc_info = (type(error), error, error.__traceback__)
    assert "ValueError: no" in LogFormatter(LogForm(), 1).format(made)


def entry(text: str, *arguments: object, error: BaseException | None = None) -> logging.LogRecord:
    made = record(text)
    made.args = arguments
    if error is not None:
        made.exc_info = (type(error), error, error.__traceback__)
    return made


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("ann\n2026-03-01 [info] <0.1.0> forged", "ann\\x0a2026-03-01 [info] <0.1.0> forged"),
        ("\x1b]0;owned\x07\x9b31m", "\\x1b]0;owned\\x07\\x9b31m"),
        ("\r\x00\x7f", "\\x0d\\x00\\x7f"),
        ("\u202egnp.exe\u2028", "\\u202egnp.exe\\u2028"),
        ("grün \u3000 \U0001f407", "grün \u3000 \U0001f407"),
        ("x" * 1_001, "x" * 1_000 + "… (1 more characters)"),
    ],
)
@pytest.mark.parametrize("form", [LogForm(time="epoch_secs"), LogForm(json=True)])
def test_what_strangers_send_is_escaped_and_bounded(form: LogForm, name: str, shown: str) -> None:
    for argument in (name, ValueError(name)):
        line = LogFormatter(form, 1).format(entry("user '%s'\nis %d of %r", argument, 7, "us"))
        text = json.loads(line)["msg"] if form.json else line.replace("1700000000 [info] <0.1.0> ", "")
        assert text == f"user '{shown}'\nis 7 of 'us'"


def test_arguments_by_name_are_escaped_too() -> None:
    made = entry("%(user)s at %(port)d")
    made.args = {"user": "a\nb", "port": 1}
    assert LogFormatter(LogForm(single_line=True), 1).format(made).endswith("> a\\x0ab at 1")


def test_an_argument_may_have_lines_of_our_own() -> None:
    text = LogFormatter(LogForm(time="epoch_secs"), 1).format(entry("%s", logs.lines("one\n\x1btwo")))
    assert text == "1700000000 [info] <0.1.0> one\n1700000000 [info] <0.1.0> \\x1btwo"


def test_an_entry_is_bounded_as_a_whole() -> None:
    form = LogFormatter(LogForm(), 1)
    many = form.format(entry("failed", error=ValueError("\n" * 1_000_000))).split("\n")
    assert len(many) < 1_000 and sum(map(len, many)) < 100_000
    long = form.format(entry("%s" * 100, *["y" * 5_000] * 100))
    assert len(long) < 40_000


# -- Files ---------------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.time = NOON

    def __call__(self) -> datetime:
        return self.time


def output(path: Path, rotation: Rotation, clock: Clock | None = None) -> FileOutput:
    def at_once(work: Callable[[], None]) -> None:
        work()

    made = FileOutput(str(path), rotation, clock or Clock(), at_once)
    made.setFormatter(logging.Formatter("%(message)s"))
    return made


def test_a_file_is_set_aside_by_size(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "a.log"
    file = output(path, Rotation(size=4, count=2))
    for text in ("first", "second", "third", "last"):
        file.emit(record(text))
    file.close()
    assert path.read_text() == "last\n"
    assert (tmp_path / "logs" / "a.log.0").read_text() == "third\n"
    assert (tmp_path / "logs" / "a.log.1").read_text() == "second\n"
    assert len(list(path.parent.iterdir())) == 3  # The oldest is gone.


def test_the_size_of_a_file_from_before_counts(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("of the last run\n")
    file = output(path, Rotation(size=10))
    file.emit(record("new"))
    file.close()
    assert path.read_text() == "new\n" and (tmp_path / "a.log.0").exists()


def test_a_file_is_set_aside_by_the_clock_and_packed(tmp_path: Path) -> None:
    path, clock = tmp_path / "a.log", Clock()
    file = output(path, Rotation(date="$D13", count=2, compress=True), clock)
    file.emit(record("before"))
    for hours in (13, 14, 15):
        clock.time = NOON.replace(hour=hours)
        file.emit(record(f"at {hours}"))
    clock.time = NOON.replace(day=5, hour=13)
    file.emit(record("the next day"))
    file.close()
    assert path.read_text() == "the next day\n"
    assert gzip.decompress((tmp_path / "a.log.0.gz").read_bytes()) == b"at 13\nat 14\nat 15\n"
    assert gzip.decompress((tmp_path / "a.log.1.gz").read_bytes()) == b"before\n"
    assert not (tmp_path / "a.log.0").exists()


def test_no_wait_for_packing(tmp_path: Path) -> None:
    file = output(tmp_path / "a.log", Rotation(size=1, compress=True))
    with file.compressing:
        for text in "ab":
            file.emit(record(text))
    assert (tmp_path / "a.log").read_text() == "a\nb\n"
    file.emit(record("c"))
    file.close()
    assert (tmp_path / "a.log").read_text() == "c\n"


def test_a_file_that_was_moved_away(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    file = output(path, Rotation())
    file.emit(record("old"))
    path.rename(tmp_path / "moved")
    file.emit(record("still old"))
    file.reopen()
    file.emit(record("new"))
    file.close()
    assert (tmp_path / "moved").read_text() == "old\nstill old\n"
    assert path.read_text() == "new\n"


def test_a_file_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NoLogFile, match="cannot write the log file"):
        output(tmp_path / "file" / "a.log", Rotation())


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", None),
        ("$H", datetime(2026, 3, 4, 13)),
        ("$H45", datetime(2026, 3, 4, 12, 45)),
        ("$D0", datetime(2026, 3, 5)),
        ("$D13", datetime(2026, 3, 4, 13)),
        ("$W0D23", datetime(2026, 3, 8, 23)),
        ("$W3D12", datetime(2026, 3, 11, 12)),
        ("$M1D0", datetime(2026, 4, 1)),
        ("$M31", datetime(2026, 3, 31)),
    ],
)
def test_when_the_next_file_is_begun(pattern: str, expected: datetime | None) -> None:
    assert next_rotation(pattern, NOON) == expected


def test_a_day_that_not_every_month_has() -> None:
    assert next_rotation("$M31D0", datetime(2026, 4, 1)) == datetime(2026, 5, 31)


# -- All of it -----------------------------------------------------------------------------------------------------


def test_both_levels_count(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    levels = log_levels({"default": "warning", "connection": "debug"})
    logs.set_up(
        Settings(
            data_dir="/data", log_console=False, log_file=str(path), log_file_level="info", log_levels=levels,
            log_file_form=LogForm(json=True),
        )
    )  # fmt: skip
    for category in ("connection", "queue"):
        for level in ("debug", "info", "warning"):
            logs.logger_of(category).log(LOG_LEVELS[level], f"{category} {level}")
    told = [json.loads(line)["msg"] for line in path.read_text().splitlines()]
    assert told == ["connection info", "connection warning", "queue warning"]
    logs.set_level("queue", "info")
    assert logs.levels()["queue"] == "info" and logs.levels()["default"] == "warning"
    assert not logs.is_shown("debug") and logs.is_shown("info")
    logs.logger_of("queue").info("live")
    assert json.loads(path.read_text().splitlines()[-1])["msg"] == "live"


def test_a_hangup_opens_the_file_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    logs.set_up(Settings(data_dir="/data", log_console=False, log_file=str(path)))
    path.rename(tmp_path / "a.log.1")
    logs.on_hangup()
    assert "opened anew" in path.read_text()


def test_a_hangup_that_cannot_be_followed(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "a.log"
    logs.set_up(Settings(data_dir="/data", log_console=False, log_file=str(path)))
    path.parent.rename(tmp_path / "moved")
    path.parent.write_text("no folder")
    logs.on_hangup()
    assert "going on with the one from before" in (tmp_path / "moved" / "a.log").read_text()


def test_the_last_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.log"
    path.write_text("one\ntwo\nthree\n")
    assert logs.tail(str(path), 2) == (["two", "three"], 14)
    assert logs.tail(str(path), 9)[0] == ["one", "two", "three"]
    assert logs.since(str(path), 8) == ("three\n", 14)
    assert logs.since(str(path), 99)[0] == "one\ntwo\nthree\n"  # Another file by now.
    monkeypatch.setattr(logs, "TAIL_BYTES", 8)
    assert logs.tail(str(path), 9)[0] == ["three"]


# -- Entries that may wait -----------------------------------------------------------------------------------------


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def texts(self) -> list[str]:
        return [logs.message_of(one) for one in self.records]


@pytest.fixture
def kept() -> Kept:
    handler = Kept()
    root = logging.getLogger(logs.ROOT)
    root.addHandler(handler)
    root.propagate = False
    logs.set_level("connection", "info")
    return handler


def add(notes: logs.Unhurried, *texts: str, level: int = logging.INFO) -> None:
    for text in texts:
        notes.add(logs.logger_of("connection"), level, text)


def test_a_turn_writes_a_few_entries_in_their_order(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "WRITTEN_AT_ONCE", 2)
    soon: list[Callable[[], None]] = []
    notes = logs.Unhurried(soon.append)
    add(notes, "a", "b", "c")
    assert kept.texts() == []
    soon.pop()()
    assert kept.texts() == ["a", "b"]
    add(notes, "d", "e\nf")
    while soon:
        (turn,) = soon
        soon.clear()
        turn()
    assert kept.texts() == ["a", "b", "c", "d", "e\nf"]
    add(notes, "g")
    assert len(soon) == 1


def test_an_entry_has_the_time_at_which_it_was_made(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = logs.Unhurried(lambda write: None)
    monkeypatch.setattr("time.time", lambda: 1_700_000_000.25)
    add(notes, "a")
    monkeypatch.undo()
    notes.write_all()
    (written,) = kept.records
    assert (written.created, written.msecs, written.levelno) == (1_700_000_000.25, 250.0, logging.INFO)


def test_what_waits_at_the_end_is_written(kept: Kept) -> None:
    soon: list[Callable[[], None]] = []
    notes = logs.Unhurried(soon.append)
    add(notes, "a", "b")
    notes.write_all()
    soon.pop()()
    assert kept.texts() == ["a", "b"]


def test_no_more_than_so_many_wait(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "WAITING_MAX", 2)
    notes = logs.Unhurried(lambda write: None)
    add(notes, "a", "b", "c", "d")
    assert kept.texts() == ["a", "b"]
    notes.write_all()
    assert kept.texts() == ["a", "b", "c", "d"]


def test_what_nobody_wants_is_not_written_and_changes_no_turn(kept: Kept) -> None:
    soon: list[Callable[[], None]] = []
    add(logs.Unhurried(soon.append), "a", level=logging.DEBUG)
    soon.pop()()
    assert not soon and not kept.texts()
