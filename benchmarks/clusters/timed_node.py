"""A node that measures each longer turn of its event loop, and can begin anew: for `turns`.

The watch of every node (`leveret.node.system.loop_watch`) is made to cost nothing: it looks fifty times a second. Its
histogram is of the time on the wall, in which a turn may show as up to 20 ms shorter than it was; its longest turn in
processor time has up to 20 ms of what came before, and is the longest since the start. That is too coarse for turns of
50 ms, and on a machine with other work the wall says nothing.

So this node has a `Meter` as well: a timer of a millisecond, at each of whose beats the processor time of the loop's
thread since the last beat is noted. A turn longer than a millisecond makes one beat late, so each of them is noted
once, and with at most a millisecond of what came before it. A thread notes where the loop's thread is when a beat is
late, so that there is a hint at what the longest turn did.

Two commands are added to those of a node: `turn_times` and `tally`. Everything else is as in any node.

    python -m benchmarks.clusters.timed_node --name ... (the words of `leveret server`)
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

from benchmarks.ruler.brokers import Leveret, free_ports
from leveret.node.system.loop_watch import LoopWatch, where

MODULE: Final = "benchmarks.clusters.timed_node"
BEAT_S: Final = 0.001
SUSPICIOUS_S: Final = 0.02
LOOK_S: Final = 0.01
BOUNDS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500)
LONG_MS: Final = 50
CALLS_SHOWN: Final = 4


class Turns:
    """How long turns took, in processor time of the loop's thread."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_MS) + 1)  # For each bound those up to it, and last the longer ones.
        self.longest_ms = 0.0
        self.worked_ms = 0.0
        self.was_in = ""  # Where the loop was during the longest, if it was seen.

    def note(self, ms: float, seen: str = "") -> None:
        self.counts[bisect_left(BOUNDS_MS, ms)] += 1
        self.worked_ms += ms
        if ms > self.longest_ms:
            self.longest_ms = ms
            self.was_in = seen

    @property
    def long(self) -> int:
        """Returns how many turns took longer than 50 ms."""
        return sum(self.counts[BOUNDS_MS.index(LONG_MS) + 1 :])

    def join(self, other: Turns) -> None:
        """Takes over the turns of another node."""
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        self.worked_ms += other.worked_ms
        if other.longest_ms > self.longest_ms:
            self.longest_ms, self.was_in = other.longest_ms, other.was_in

    @classmethod
    def read(cls, fields: dict[str, Any]) -> Self:
        found = cls()
        vars(found).update(fields)
        return found


# -- In the node ----------------------------------------------------------------------------------------------------


class Meter:
    """Measures the turns of one event loop, from `start` on, which the loop's own thread must call."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        processor: Callable[[], float] = time.thread_time,
    ) -> None:
        self.turns = Turns()
        self._clock = clock
        self._processor = processor
        self._due = clock()
        self._worked_s = 0.0  # Processor time of the loop's thread at the last beat.
        self._seen = ""
        self._stopped = threading.Event()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._thread_id = loop, threading.get_ident()
        self._arm()
        threading.Thread(target=self._look_on, name="look at the event loop", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def begin_anew(self) -> None:
        self.turns = Turns()

    def leave_out(self, since_s: float) -> None:
        """Leaves out what the loop's thread has done since then: it was done for the benchmark alone."""
        self._worked_s += self._processor() - since_s

    def _arm(self) -> None:
        self._worked_s = self._processor()
        self._due = self._clock() + BEAT_S
        self._loop.call_later(BEAT_S, self.beat)

    def beat(self) -> None:
        self.turns.note((self._processor() - self._worked_s) * 1000, self._seen)
        self._seen = ""
        if not self._stopped.is_set():
            self._arm()

    def _look_on(self) -> None:
        while not self._stopped.wait(LOOK_S):
            self.look()

    def look(self) -> None:
        """Notes where the loop is if it is late. The first note of a turn is kept."""
        if self._clock() - self._due >= SUSPICIOUS_S and not self._seen:
            frame = sys._current_frames().get(self._thread_id)
            if frame is not None:
                self._seen = " < ".join(where(frame).split(" < ")[:CALLS_SHOWN])


class MeteredWatch(LoopWatch):
    """The watch of a node, with a meter beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.meter = Meter()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        super().start(loop)
        self.meter.start(loop)

    def stop(self) -> None:
        super().stop()
        self.meter.stop()


def run_node(words: list[str]) -> None:
    from leveret.broker.queue.local_queue import LocalQueue
    from leveret.cli.main import main
    from leveret.node import server
    from leveret.node.admin import dispatch
    from leveret.node.admin.common.command import ALWAYS, FLAG, TEXT, Commands

    commands = Commands()

    @commands.add(ALWAYS, anew=FLAG)
    async def turn_times(control: dispatch.Control, anew: bool) -> Any:
        """Returns the turns since it was last begun anew, and may begin anew."""
        meter = control.server.watch.meter  # type: ignore[attr-defined]
        found = vars(meter.turns)
        if anew:
            meter.begin_anew()
        return found

    @commands.add(vhost=TEXT)
    async def tally(control: dispatch.Control, vhost: str) -> Any:
        """Counts what there is in a vhost, as this node knows it."""
        began_s, node = time.thread_time(), control.node
        masters: dict[str, int] = {}
        copies = messages = limited = 0
        for spec in node.metadata.queues.values():
            if spec.vhost == vhost:
                masters[spec.node] = masters.get(spec.node, 0) + 1
                copies += 1 if spec.view is None else len(spec.view.in_sync)
                queue = node.broker.queues_by_id.get(spec.id)
                if isinstance(queue, LocalQueue):
                    messages += queue.ready_count + queue.unacked_count
                    limited += queue.applied_rules.max_length is not None
        counts = {"copies": copies, "messages": messages, "limited": limited, "masters": masters}
        control.server.watch.meter.leave_out(began_s)  # type: ignore[attr-defined]
        return counts | {"queues": sum(masters.values()), "connections": len(node.broker.connections)}

    setattr(server, "LoopWatch", MeteredWatch)  # noqa: B010
    dispatch.COMMANDS.update(commands.table)
    main(["server", *words])


# -- In the benchmark -----------------------------------------------------------------------------------------------


class TimedLeveret(Leveret):
    """Such a node, with a port for HTTP."""

    def __init__(self, folder: Path, beside: Self | None = None) -> None:
        super().__init__(folder, beside)
        [self.http_port] = free_ports(1)

    def command(self) -> list[str]:
        command = super().command()
        command[command.index("--management-port") + 1] = str(self.http_port)
        at = command.index("leveret")
        assert command[at + 1] == "server"
        return [*command[:at], MODULE, *command[at + 2 :]]

    def turns(self, anew: bool = False) -> Turns:
        return Turns.read(self.control("turn_times", anew=anew))


if __name__ == "__main__":
    run_node(sys.argv[1:])
