"""Ctrl-C and SIGTERM: a job ends within seconds, with one line that says how to continue.

Jobs survive being killed at any moment, so no batch has to finish: the work in progress is cut off, and repeated by the
next start. Three things make a quiet end hard:

- Spark logs every task that it drops, in hundreds of lines. They come from the Java process and from its Python
  workers, which write to stderr whatever the log level is. So this process, and with it all of those, get a pipe as
  stderr; its contents are passed on until the job is stopped.
- A signal handler raises wherever the main thread is, mostly while it waits for an answer of Java. That answer is still
  to come, and would be taken for the answer to the next call. So another thread, which has its own connection, tells
  Java to stop (`aside`).
- Java may be busy with something that cannot be interrupted. So the wait for it is limited to a few seconds; Java ends
  by itself when this process is gone.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

from leveret.base.exit_codes import INTERRUPTED, OK

PATIENCE_S: Final = 8.0
NOT_BEGUN: Final = "Spark was being started, and nothing is changed"
BEGINS_ANEW: Final = "it had not come to its end, and begins anew when it is started again"
GOES_ON: Final = "the same command goes on where it was"
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_STDERR: Final = 2


class Stopped(KeyboardInterrupt):
    """A signal stopped the job. Not an Exception: handlers of a job's own errors must not catch it."""


class Ending:
    """The text and exit code of a job that is stopped. A job sets its own when it begins (`if_stopped`)."""

    def __init__(self) -> None:
        self.text = NOT_BEGUN
        self.code = INTERRUPTED


_current: Final = Ending()  # A process runs one command.


def if_stopped(text: str, *, endless: bool = False) -> None:
    """Sets the text for a job that is stopped. `endless`: the job ends only by a signal, which is then no failure."""
    _current.text, _current.code = text, OK if endless else INTERRUPTED


def ending() -> Ending:
    return _current


def aside(call: Callable[[], object]) -> None:
    """Calls a method of Java in a thread of its own, and waits for it `PATIENCE_S` at most."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)


@contextmanager
def stoppable() -> Iterator[Relay]:
    """Makes signals raise `Stopped`, once, and silences stderr from then on. Enter it before Spark is started, and call
    `handle_signals` afterwards: Spark installs a handler of its own."""
    if_stopped(NOT_BEGUN)
    relay = Relay()
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    relay.handle_signals()
    try:
        yield relay
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        relay.end()


class Relay:
    """Passes on what this process and its children write to stderr, until a signal comes."""

    def __init__(self) -> None:
        sys.stderr.flush()
        self.outside = os.dup(_STDERR)
        self.quiet = threading.Event()
        self.source, sink = os.pipe()
        os.dup2(sink, _STDERR)
        os.close(sink)
        self.wake, self.waker = os.pipe()
        self.thread = threading.Thread(target=self._pass_on, daemon=True)
        self.thread.start()

    def handle_signals(self) -> None:
        """Installs the signal handlers."""
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> NoReturn:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)  # A second signal kills the process.
        self.quiet.set()
        raise Stopped

    def _pass_on(self) -> None:
        ended = False
        while not ended:
            ready, _, _ = select.select([self.source, self.wake], [], [])
            ended = self.wake in ready
            while select.select([self.source], [], [], 0)[0]:
                data = os.read(self.source, 1 << 16)
                if not data:
                    return  # All writers have ended: Java was stopped by the same signal.
                if not self.quiet.is_set():
                    _write(self.outside, data)

    def end(self) -> None:
        """Passes on what was written so far, and gives stderr back. What Java writes later is lost."""
        sys.stderr.flush()
        os.dup2(self.outside, _STDERR)
        os.close(self.waker)
        self.thread.join()
        for descriptor in (self.source, self.wake, self.outside):
            os.close(descriptor)


def _write(descriptor: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        return  # The terminal was closed. Writers to the pipe must not block for that.
