"""The log of a node: one entry for each event, to the console, a file, or both.

An entry looks as RabbitMQ's do, because people have patterns for those:

    2026-03-01 09:30:00.123456+00:00 [info] <0.4711.0> accepting AMQP connection ...
    {"time":"2026-03-01 09:30:00.123456+00:00","level":"info","msg":"accepting ...","domain":"rabbitmq.connection",...}

Where Erlang has the process that writes, here is the number of the node's process. A text of several lines has the
same head before each of them, so that `grep` finds whole entries; in JSON they stay one line.

Much of what is logged was sent by clients: names, reasons, paths. Every entry passes through `LogFormatter`, which
trusts no argument of an entry: newlines and control characters in it are escaped, and it is cut to
`visible_text.CHARACTERS_MAX`. So nobody forges an entry, sends a terminal a command, or fills a disk with one request.
The text that the arguments are put into is the node's own, and may have several lines; an argument of type `lines` may,
too. The size of an entry as a whole is limited, with the traceback that it may have.

Two levels decide whether an entry is written. A *category* (`log.connection.level`) has a level, and so has each
*output* (`log.file.level`); an entry must pass both. `set_log_level` changes the levels of categories while the node
runs.

Entries about clients may come by the thousand in one turn of the event loop: two thousand clients go, ten thousand
queues expire. To write one takes longer than what it tells of, so these are written a few in a turn (`Unhurried`).

A file is rotated when it has grown to a size, or at a time of the day, week or month (`log.file.rotation.*`). The
newest of the old files is NAME.0, the one before NAME.1, as RabbitMQ numbers them. Compressing is done by a thread of
its own: the event loop, on which entries are written, must not wait for it. A tool of the system that rotates logs
moves the file away and sends SIGHUP, or runs `leveretctl rotate_logs`: the node opens a new one under the name.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final, TextIO

from leveret.base.visible_text import visible, visible_lines
from leveret.node.config.schema import ROTATION_DATE
from leveret.node.config.settings import LOG_CATEGORIES, LOG_LEVELS, LogForm, Rotation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from leveret.node.config.settings import Settings

ROOT: Final = "leveret"
# RabbitMQ's short names of levels: three and four letters.
SHORT: Final = {
    "debug": ("dbg", "dbug"),
    "info": ("inf", "info"),
    "notice": ("ntc", "noti"),
    "warning": ("wrn", "warn"),
    "error": ("err", "erro"),
    "critical": ("crt", "crit"),
}
ENTRY_CHARACTERS_MAX: Final = 32 << 10
ENTRY_LINES_MAX: Final = 200
WRITTEN_AT_ONCE: Final = 64  # Entries in a turn of the event loop, of those that may wait.
WAITING_MAX: Final = 20_000  # Entries that wait. Beyond that, each new one has the oldest written.
TAIL_BYTES: Final = 1 << 20  # How much of a file is read for its last lines.


class NoLogFile(Exception):
    """The file cannot be written; the text says why."""


# -- Forms ---------------------------------------------------------------------------------------------------------


class lines(str):
    """An argument of an entry that is the node's own text, whose newlines are not escaped."""


class _Argument:
    """An argument of an entry, as it is shown."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __str__(self) -> str:
        return visible(self.value)

    def __repr__(self) -> str:
        return visible(repr(self.value))


def _shown(value: object) -> object:
    return value if value is None or isinstance(value, int | float | lines) else _Argument(value)


def message_of(record: logging.LogRecord) -> str:
    """Returns the text of an entry, without its traceback."""
    arguments: tuple[object, ...] | Mapping[str, object] | None = record.args
    if not arguments:
        return str(record.msg)
    if isinstance(arguments, tuple):
        return str(record.msg) % tuple(map(_shown, arguments))
    return str(record.msg) % {name: _shown(value) for name, value in arguments.items()}


class LogFormatter(logging.Formatter):
    """Formats an entry as text or JSON."""

    def __init__(self, form: LogForm, pid: int) -> None:
        super().__init__()
        self.form = form
        self.pid = f"<0.{pid}.0>"

    def format(self, record: logging.LogRecord) -> str:
        text = message_of(record)
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        text = visible_lines(text, ENTRY_CHARACTERS_MAX, ENTRY_LINES_MAX)
        time, level = self.time_of(record.created), self.level_of(record.levelname)
        if self.form.json:
            domain = record.name.replace(ROOT, "rabbitmq", 1)
            entry = {"time": time, "level": level, "msg": text, "domain": domain, "pid": self.pid}
            # Names of queues may not be UTF-8, and JSON must be.
            return json.dumps(entry, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace").decode()
        head = f"{time} [{level}] {self.pid} "
        if self.form.single_line:
            return head + " ".join(text.split("\n"))
        return "\n".join(head + line for line in text.split("\n"))

    def time_of(self, created: float) -> str | int:
        kind = self.form.time
        if kind == "epoch_secs":
            return int(created)
        if kind == "epoch_usecs":
            return round(created * 1_000_000)
        moment = datetime.datetime.fromtimestamp(created).astimezone()
        if kind == "lager_default":
            return moment.replace(tzinfo=None).isoformat(" ", "milliseconds")
        return moment.isoformat("T" if kind == "rfc3339_T" else " ", "microseconds")

    def level_of(self, name: str) -> str:
        kind = self.form.level
        if kind[2:]:
            name = SHORT[name][int(kind[2:]) - 3]
        return name.upper() if kind.startswith("uc") else name


# -- Outputs -------------------------------------------------------------------------------------------------------


class FileOutput(logging.Handler):
    """Writes entries to a file, and rotates it. `now` is a clock; `later` runs what takes long."""

    def __init__(
        self,
        path: str,
        rotation: Rotation,
        now: Callable[[], datetime.datetime] = datetime.datetime.now,
        later: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        super().__init__()
        self.path = path
        self.rotation = rotation
        self.now = now
        self.later = later or _in_a_thread
        self.compressing = threading.Lock()  # One file is compressed at a time, and none while files are renamed.
        self.due = next_rotation(rotation.date, now())
        self.file = self._open()

    def _open(self) -> TextIO:
        try:
            os.makedirs(os.path.dirname(self.path), mode=0o750, exist_ok=True)
            file = open(self.path, "a", encoding="utf-8", errors="replace")  # noqa: SIM115 (it stays open)
        except OSError as error:
            raise NoLogFile(f"cannot write the log file {self.path}: {error.strerror or error}") from None
        self.size = os.fstat(file.fileno()).st_size
        return file

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record) + "\n"
            if self._is_time():
                self.rotate()
            self.file.write(text)
            self.file.flush()
            self.size += len(text.encode("utf-8", "replace"))
        except (OSError, ValueError, NoLogFile):
            self.handleError(record)  # Writes it to stderr: a disk that is full must not stop the node.

    def _is_time(self) -> bool:
        if self.rotation.size and self.size >= self.rotation.size:
            return True
        return self.due is not None and self.now() >= self.due

    def rotate(self) -> None:
        """Begins a new file; the numbers of the old ones rise by one, and the oldest is deleted."""
        if not self.size:
            self.due = next_rotation(self.rotation.date, self.now())
            return
        if not self.compressing.acquire(blocking=False):
            return  # The file goes on growing until the last one is compressed.
        try:
            for number in range(self.rotation.count - 1, -1, -1):
                for ending in ("", ".gz"):
                    self._pass_on(f"{self.path}.{number}{ending}", f"{self.path}.{number + 1}{ending}", number)
            os.replace(self.path, f"{self.path}.0")
            self._reopen()
            self.due = next_rotation(self.rotation.date, self.now())
        finally:
            self.compressing.release()
        if self.rotation.compress:
            self.later(self._compress)

    def _pass_on(self, name: str, following: str, number: int) -> None:
        if not os.path.exists(name):
            return
        if number == self.rotation.count - 1:
            os.remove(name)
        else:
            os.replace(name, following)

    def _compress(self) -> None:
        import gzip  # Rarely needed, and a start pays for each module.
        import shutil

        with self.compressing:
            for number in range(self.rotation.count):
                name = f"{self.path}.{number}"
                if not os.path.exists(name):
                    continue
                with open(name, "rb") as plain, gzip.open(f"{name}.gz.new", "wb") as packed:
                    shutil.copyfileobj(plain, packed)
                os.replace(f"{name}.gz.new", f"{name}.gz")
                os.remove(name)

    def reopen(self) -> None:
        """Opens the file again, after another program has moved it away."""
        self.acquire()
        try:
            self._reopen()
        finally:
            self.release()

    def _reopen(self) -> None:
        old = self.file
        self.file = self._open()  # If that fails, the old one is still written.
        old.close()

    def close(self) -> None:
        self.file.close()
        super().close()


def _in_a_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="compress a log file").start()


def next_rotation(pattern: str, now: datetime.datetime) -> datetime.datetime | None:
    """Returns the first moment after `now` that the pattern names; None if it names none."""
    found = ROTATION_DATE.fullmatch(pattern)
    if found is None:
        return None
    hourly, minute, daily, day_hour, weekly, weekday, week_hour, _, month_day, month_hour = found.groups()
    if hourly:
        moment = now.replace(minute=int(minute or 0), second=0, microsecond=0)
        return moment if moment > now else moment + datetime.timedelta(hours=1)
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    for days in range(64):
        day = midnight + datetime.timedelta(days=days)
        if daily:
            fits, hour = True, day_hour
        elif weekly:
            fits, hour = day.isoweekday() % 7 == int(weekday), week_hour
        else:
            fits, hour = day.day == int(month_day), month_hour
        moment = day.replace(hour=int(hour or 0))
        if fits and moment > now:
            return moment
    raise AssertionError(f"{pattern} names a day that comes at least every second month")


class Unhurried:
    """Entries that are written in their order, with the time at which they were made, a few in each turn of an event
    loop. `soon` has a function called in the next turn."""

    def __init__(self, soon: Callable[[Callable[[], None]], object]) -> None:
        self._soon = soon
        self._waiting: deque[tuple[logging.Logger, int, float, str]] = deque()

    def add(self, logger: logging.Logger, level: int, text: str) -> None:
        """`text` is the node's own, and may have several lines."""
        if not self._waiting:
            self._soon(self._write_some)
        elif len(self._waiting) >= WAITING_MAX:
            self._write()
        self._waiting.append((logger, level, time.time(), text))

    def write_all(self) -> None:
        """The process may end, or an entry that cannot wait is about to be written."""
        while self._waiting:
            self._write()

    def _write_some(self) -> None:
        for _ in range(min(len(self._waiting), WRITTEN_AT_ONCE)):
            self._write()
        if self._waiting:
            self._soon(self._write_some)

    def _write(self) -> None:
        logger, level, made_s, text = self._waiting.popleft()
        if not logger.isEnabledFor(level):  # Only now: what a node does must not depend on what it logs.
            return
        record = logger.makeRecord(logger.name, level, "", 0, "%s", (lines(text),), None)
        record.created, record.msecs = made_s, made_s % 1 * 1_000
        logger.handle(record)


# -- Set-up and levels ---------------------------------------------------------------------------------------------


def set_up(settings: Settings) -> None:
    """Directs the loggers `leveret` and `leveret.<category>` to the configured outputs. Raises `NoLogFile`."""
    for name in ("debug", "info", "notice", "warning", "error", "critical"):
        logging.addLevelName(LOG_LEVELS[name], name)
    logger = logging.getLogger(ROOT)
    logger.propagate = False
    for old in list(logger.handlers):
        logger.removeHandler(old)
    outputs: list[tuple[logging.Handler, str, LogForm]] = []
    if settings.log_console:
        stream = sys.stdout if settings.log_console_stdio == "stdout" else sys.stderr
        outputs.append((logging.StreamHandler(stream), settings.log_console_level, settings.log_console_form))
    if settings.log_file is not None:
        file = FileOutput(settings.log_file, settings.log_rotation)
        outputs.append((file, settings.log_file_level, settings.log_file_form))
    for handler, level, form in outputs:
        handler.setLevel(LOG_LEVELS[level])
        handler.setFormatter(LogFormatter(form, os.getpid()))
        logger.addHandler(handler)
    for category in LOG_CATEGORIES:
        level = settings.log_levels.get(category, settings.log_levels.get("default", "debug"))
        set_level(category, level)


def logger_of(category: str) -> logging.Logger:
    return logging.getLogger(ROOT if category == "default" else f"{ROOT}.{category}")


def set_level(category: str, level: str) -> None:
    logger_of(category).setLevel(LOG_LEVELS[level])


def levels() -> dict[str, str]:
    """Returns the present level of each category."""
    names = {number: name for name, number in reversed(list(LOG_LEVELS.items()))}
    return {name: names.get(logger_of(name).getEffectiveLevel(), "info") for name in LOG_CATEGORIES}


def is_shown(level: str) -> bool:
    """Returns whether any output writes entries of that level."""
    handlers = logging.getLogger(ROOT).handlers
    return not handlers or any(handler.level <= LOG_LEVELS[level] for handler in handlers)


def reopen() -> None:
    """Opens the log files again under their names. Raises `NoLogFile`; then the old ones are still written."""
    for handler in logging.getLogger(ROOT).handlers:
        if isinstance(handler, FileOutput):
            handler.reopen()


def on_hangup() -> None:
    """Opens the log files again at SIGHUP. A failure is logged, since a signal has no caller to be told."""
    try:
        reopen()
    except NoLogFile as error:
        logging.getLogger(ROOT).error("%s; going on with the one from before", error)
    else:
        logging.getLogger(ROOT).info("SIGHUP: log files, if there are any, were opened anew")


def tail(path: str, lines: int) -> tuple[list[str], int]:
    """Returns the last lines of a file, and where it ends. Raises OSError."""
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        start = file.seek(max(0, end - TAIL_BYTES))
        data = file.read(end - start)
    found = data.decode("utf-8", "replace").splitlines()
    if start and found:
        del found[0]  # Its beginning was not read.
    return found[-lines:], end


def since(path: str, position: int) -> tuple[str, int]:
    """Returns what was written after a position, and where to go on. A file that is shorter than the position is a new
    one, and read from its beginning."""
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(position if position <= end else 0)
        data = file.read(TAIL_BYTES)
        return data.decode("utf-8", "replace"), file.tell()
