"""Ctrl-C and SIGTERM: a job ends within seconds, with one line that says how to go on.

Jobs are made for being killed at any moment, so there is no batch to wait for: what is under way is cut off, and done
again by the next start, or never was. Three things are in the way of doing that quietly:

- Spark tells of every task that it is made to drop, in hundreds of lines. They come from Java's process and from its
  Python workers, which write to stderr as they like, whatever the log's level is. So all of them, and this process,
  are given a pipe for stderr; what comes out of it is passed on, until the job is stopped.
- A signal's handler raises wherever the main thread is, mostly while it waits for Java's answer. That answer is still
  to come, and would be taken for the one to the next question. So Java is asked to stop by another thread, which has a
  connection of its own (`aside`).
- Java may be busy with something that cannot be cut off. Whoever waits does so for a few seconds; Java ends by itself
  when this process is gone.
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
    """By a signal. Not an Exception: nothing that deals with a job's own errors is to take it for one."""


class Ending:
    """What is said, and given to the shell, if a job is stopped. Jobs that can say better do, when they begin."""

    def __init__(self) -> None:
        self.text = NOT_BEGUN
        self.code = INTERRUPTED


_current: Final = Ending()  # A process is one command at most.


def if_stopped(text: str, *, endless: bool = False) -> None:
    """`endless`: to be stopped is the only way in which the job ends, and no failure."""
    _current.text, _current.code = text, OK if endless else INTERRUPTED


def ending() -> Ending:
    return _current


def aside(call: Callable[[], object]) -> None:
    """Call something of Java's by a thread of its own; do not wait for longer than `PATIENCE_S`."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)


@contextmanager
def stoppable() -> Iterator[Relay]:
    """Within, signals raise `Stopped`, once, and stderr is quiet from then on. Begin it before Spark is started, and
    say `heed` once it is: Spark has a handler of its own."""
    if_stopped(NOT_BEGUN)
    relay = Relay()
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    relay.heed()
    try:
        yield relay
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        relay.end()


class Relay:
    """Stands between stderr and all that this process starts."""

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

    def heed(self) -> None:
        """Of signals, from now on."""
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> NoReturn:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)  # Who asks twice does not want to wait at all.
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
                    return  # Nobody is left who could write: Java was stopped by the same signal.
                if not self.quiet.is_set():
                    _write(self.outside, data)

    def end(self) -> None:
        """What was written before is passed on. What Java writes from now on is not: it has nobody to write to."""
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
        return  # A terminal that was closed. Whoever writes to us must not be held up for that.
