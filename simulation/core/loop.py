"""Virtual time, and event loops in it.

One `Scheduler` holds all future events, ordered by time and then by when they were scheduled. A `NodeLoop` is the event
loop of one life of one process: an asyncio loop as far as coroutines, tasks, futures, timers and protocols can tell, so
the broker's own code runs on it unchanged, and every run with the same random numbers is the same run.

Like a real loop it works in *passes*: callbacks that were due when a pass began run in it, and what they schedule runs
in the next. A pass begins a moment after there is something to do, and includes all that arrives during that moment.
That makes batches, as load does in reality, and it lets time pass for code that waits by rescheduling itself. `pause`
delays the next pass: the process was stopped, or its machine was busy.

A killed loop runs nothing any more, whoever still holds it. The `finally` blocks of its coroutines run when they are
closed, as Python requires, and have no effect.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from simulation.core.network import Network, SimServer

_T = TypeVar("_T")

PASS_S_MIN: Final = 0.000_01
PASS_S_MORE: Final = 0.000_1
# That many passes without time passing are a loop that calls itself for ever.
PASSES_MAX: Final = 100_000


class Endless(AssertionError):
    """Raised when callbacks continue for ever without time passing."""


class Scheduler:
    """Holds all future events, in the order of virtual time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self.stop = False  # The run is to end.
        self._sequence = 0
        self._heap: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []

    def at(self, when: float, what: Callable[..., Any], *args: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (when if when > self.now else self.now, self._sequence, what, args))

    def after(self, delay: float, what: Callable[..., Any], *args: Any) -> None:
        self.at(self.now + delay, what, *args)

    def run(self, until: float, done: Callable[[], bool] | None = None) -> bool:
        """Lets time pass until then; returns True as soon as `done` does, which is asked every tenth of a second."""
        heap = self._heap
        look_at = self.now
        while heap and heap[0][0] <= until:
            when, _, what, args = heapq.heappop(heap)
            self.now = when
            self.events += 1
            if done is not None and when >= look_at:
                if done():
                    heapq.heappush(heap, (when, 0, what, args))
                    return True
                look_at = when + 0.1
            what(*args)
            if self.stop:
                return False
        self.now = max(self.now, until)
        return done() if done is not None else False


class SimHandle(asyncio.TimerHandle):
    """A scheduled callback of a loop."""

    __slots__ = ()

    def __init__(self, callback: Callable[..., Any], args: tuple[Any, ...], context: Context | None, when: float):
        self._callback = callback
        self._args = args
        self._context: Any = context
        self._when = when
        self._cancelled = False

    def __repr__(self) -> str:
        return f"SimHandle({self._callback!r}, {self._when})"

    __hash__ = object.__hash__

    def cancel(self) -> None:
        self._cancelled = True

    def run(self) -> None:
        if self._cancelled:
            return
        if self._context is None:
            self._callback(*self._args)
        else:
            self._context.run(self._callback, *self._args)


# For the type checker it is anything: of a loop's eighty methods, only those in use exist here.
_Loop: Any = asyncio.AbstractEventLoop


class NodeLoop(_Loop):  # type: ignore[misc]
    """The event loop of one process, from its start to its end."""

    def __init__(
        self,
        scheduler: Scheduler,
        network: Network,
        place: str,
        rng: random.Random,
        on_fault: Callable[[str], None],
    ) -> None:
        self.scheduler = scheduler
        self.network = network
        self.place = place
        self.rng = rng
        self.on_fault = on_fault  # Called with an exception that nobody handled.
        self.after_pass: Callable[[], None] | None = None
        self.alive = True
        self.dates = False  # Whether protocols look at the time when the bytes they receive were written.
        self.base_s = rng.random() * 1e5  # A clock that never jumps, and begins anywhere.
        self._ready: deque[SimHandle] = deque()
        self._pass_due = False
        self._paused_until = 0.0
        self._passes_at = 0.0
        self._passes = 0
        self._tasks: dict[asyncio.Task[Any], None] = {}

    # -- Time and turns ------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self.scheduler.now + self.base_s

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> SimHandle:
        handle = SimHandle(callback, args, context, 0.0)
        if self.alive:
            self._ready.append(handle)
            if not self._pass_due:
                self._schedule_pass()
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> SimHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> SimHandle:
        handle = SimHandle(callback, args, context, when)
        if self.alive:
            self.scheduler.at(when - self.base_s, self._on_due, handle)
        return handle

    def pause(self, seconds: float) -> None:
        """The process does not run for that long."""
        self._paused_until = max(self._paused_until, self.scheduler.now + seconds)

    @property
    def is_paused(self) -> bool:
        return self.scheduler.now < self._paused_until

    def _on_due(self, handle: SimHandle) -> None:
        if self.alive and not handle._cancelled:
            self._ready.append(handle)
            if not self._pass_due:
                self._schedule_pass()

    def _schedule_pass(self) -> None:
        self._pass_due = True
        when = self.scheduler.now + PASS_S_MIN + self.rng.random() * PASS_S_MORE
        self.scheduler.at(max(when, self._paused_until), self._pass)

    def _pass(self) -> None:
        if not self.alive:
            return
        if self.scheduler.now < self._paused_until:
            self.scheduler.at(self._paused_until, self._pass)
            return
        self._count_pass()
        ready = self._ready
        asyncio._set_running_loop(self)
        try:
            for _ in range(len(ready)):
                handle = ready.popleft()
                try:
                    handle.run()
                except Exception as error:
                    self.call_exception_handler({"message": f"in {handle!r}", "exception": error})
                if not self.alive:
                    return
            if self.after_pass is not None:
                self.after_pass()
        finally:
            asyncio._set_running_loop(None)
        self._pass_due = False
        if ready:
            self._schedule_pass()

    def _count_pass(self) -> None:
        """Fails if a process is busy for ten seconds without a break, which is an endless loop."""
        now = self.scheduler.now
        if now - self._passes_at > 10:
            self._passes_at, self._passes = now, 0
        self._passes += 1
        if self._passes > PASSES_MAX:
            raise Endless(f"{self.place} is busy without an end")

    def kill(self) -> None:
        """Ends the process: none of its callbacks run any more."""
        self.alive = False
        self._ready.clear()
        tasks, self._tasks = self._tasks, {}
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        for task in tasks:
            if not task.done():
                close_quietly(task.get_coro())

    # -- What asyncio asks of a loop -----------------------------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, _T] | Coroutine[Any, Any, _T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[_T]:
        task: asyncio.Task[_T] = asyncio.Task(coro, loop=self, name=name or "task", context=context)
        self._tasks[task] = None
        task.add_done_callback(self._forget_task)
        return task

    def _forget_task(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    async def create_server(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        **options: Any,
    ) -> SimServer:
        assert options.get("ssl") is None  # There is no TLS here.
        return self.network.listen(self, protocol_factory, port or 0)

    async def create_connection(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **options: Any
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        assert options.get("ssl") is None
        return await self.network.connect(self, protocol_factory, host, port)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.alive:
            return
        error = context.get("exception")
        frames = traceback.extract_tb(error.__traceback__) if isinstance(error, BaseException) else []
        where = "".join(f"\n  {one.filename}:{one.lineno} {one.name}: {one.line}" for one in frames[-6:])
        self.on_fault(f"{context.get('message')}: {error!r}{where}")

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self.alive

    def is_closed(self) -> bool:
        return not self.alive

    def __repr__(self) -> str:
        return f"NodeLoop({self.place})"


def close_quietly(coroutine: Any) -> BaseException | None:
    """Closes a coroutine of a dead process, and ignores its errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            coroutine.close()
        except (Exception, asyncio.CancelledError) as error:
            return error
    return None
