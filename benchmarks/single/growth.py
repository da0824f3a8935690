"""Measures Leveret with more and more queues, connections, bindings and waiting messages.

Each curve is a list of points; a point is a row of named numbers. The load beside what grows stays the same, so a flat
curve means that only what is used costs anything.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

from benchmarks.ruler import calls
from benchmarks.ruler.brokers import Leveret, running
from benchmarks.ruler.calls import Connection
from benchmarks.ruler.load import Driven, drive
from benchmarks.ruler.workloads import PREFIX, WORKLOADS, Workload, consumer, publisher, scene
from benchmarks.ruler.workloads import run as run_workload
from benchmarks.single.compare import drain, fill
from leveret.client import amqp

Point = dict[str, float]
Tell = Callable[[str], None]

QUEUES: Final = (1, 3, 10, 30, 100, 300, 1_000)
IDLE_CONNECTIONS: Final = (1, 10, 100, 500, 1_000, 2_000)
BUSY_CONNECTIONS: Final = (2, 10, 40, 100, 400, 1_000, 2_000)
BINDINGS: Final = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
WAITING: Final = (0, 10_000, 100_000, 1_000_000, 3_000_000, 10_000_000)
QUICK_LIMIT: Final = {"queues": 100, "connections": 100, "bindings": 10_000, "waiting": 100_000}

SAFE: Final = next(workload for workload in WORKLOADS if workload.name == "safe")
TOPIC: Final = next(workload for workload in WORKLOADS if workload.name == "topic")
# A bind is on disk before the next one of the same connection is handled, so speed comes from many connections.
BINDERS: Final = 100
BINDS_AT_ONCE: Final = 200  # For each connection; they fit into the buffers of its socket.
ROUTED_KEYS_MAX: Final = 10_000
SETTLE_S: Final = 1.0
WEIGHED_MIN: Final = 1_000


class Growth:
    """Measures the curves, each point for `seconds`. Errors are collected in `problems`."""

    def __init__(self, seconds: float, quick: bool, data: Path | None, tell: Tell) -> None:
        self.seconds, self.quick, self.data, self.tell = seconds, quick, data, tell
        self.problems: list[str] = []

    def _steps(self, steps: Sequence[int], limit: str) -> list[int]:
        return [step for step in steps if not self.quick or step <= QUICK_LIMIT[limit]]

    def _note(self, where: str, result: Driven) -> None:
        if not result.is_good:
            self.problems.append(f"{where}: {result}")
            self.tell(f"PROBLEM {self.problems[-1]}")

    # -- Queues and connections ----------------------------------------------------------------------------------

    def queues(self) -> list[Point]:
        """Runs `safe` with one publisher and one consumer, whose messages go to all queues in turn."""
        points: list[Point] = []
        with running(Leveret, self.data) as broker:
            for count in self._steps(QUEUES, "queues"):
                names = [f"{PREFIX}.{number:05}" for number in range(count)]
                with scene(broker.port, names), Connection(broker.port) as one, Connection(broker.port) as other:
                    consumers, publishers = [consumer(one, names, SAFE)], [publisher(other, "", names, SAFE)]
                    time.sleep(SETTLE_S)
                    result = drive(publishers, consumers, seconds=self.seconds)
                self._note(f"{count} queues", result)
                points.append({"queues": count, "per_s": result.per_s, "client_cpu": result.client_cpu})
                self.tell(f"{count:,} queues: {result.per_s:,}/s")
        return points

    def idle_connections(self) -> list[Point]:
        """Runs `safe` beside idle connections."""
        points: list[Point] = []
        with running(Leveret, self.data) as broker, contextlib.ExitStack() as opened:
            empty, held = broker.resident_bytes(), 0
            for count in self._steps(IDLE_CONNECTIONS, "connections"):
                began, fresh = time.perf_counter(), count - held
                for _ in range(fresh):
                    opened.enter_context(Connection(broker.port))
                opened_per_s, held = fresh / (time.perf_counter() - began), count
                weight = weigh(broker.resident_bytes() - empty, count)
                result = run_workload(broker.port, SAFE, self.seconds, SETTLE_S)
                self._note(f"{count} idle connections", result)
                points.append(
                    {
                        "connections": count,
                        "per_s": result.per_s,
                        "client_cpu": result.client_cpu,
                        "opened_per_s": opened_per_s,
                    }
                    | weight
                )
                self.tell(f"{count:,} idle connections: {result.per_s:,}/s beside, opened {opened_per_s:,.0f}/s")
        return points

    def busy_connections(self) -> list[Point]:
        """Runs `safe` with pairs of a publisher and a consumer, each with a queue, with 2,000 messages in flight in
        all."""
        points: list[Point] = []
        with running(Leveret, self.data) as broker:
            for count in self._steps(BUSY_CONNECTIONS, "connections"):
                result = run_workload(broker.port, pairs(count // 2), self.seconds, SETTLE_S)
                self._note(f"{count} busy connections", result)
                points.append({"connections": count, "per_s": result.per_s, "client_cpu": result.client_cpu})
                self.tell(f"{count:,} busy connections: {result.per_s:,}/s")
        return points

    # -- Bindings ------------------------------------------------------------------------------------------------

    def bindings(self, kind: Literal["direct", "topic"]) -> list[Point]:
        """Measures one exchange with more and more bindings to one queue; each key matches exactly one of them."""
        points: list[Point] = []
        queue, exchange = f"{PREFIX}.bindings", f"{PREFIX}.{kind}"
        with running(Leveret, self.data) as broker:
            with Connection(broker.port) as admin:
                admin.declare_queue(queue)
                admin.declare_exchange(exchange, kind)
            empty, bound = broker.resident_bytes(), 0
            for count in self._steps(BINDINGS, "bindings"):
                binds_per_s = bind_many(broker.port, queue, exchange, kind, range(bound, count))
                bound = count
                weight = weigh(broker.resident_bytes() - empty, count)
                result = self._route(broker.port, queue, exchange, count)
                self._note(f"{count} {kind} bindings", result)
                points.append(
                    {
                        "bindings": count,
                        "per_s": result.per_s,
                        "client_cpu": result.client_cpu,
                        "binds_per_s": binds_per_s,
                    }
                    | weight
                )
                self.tell(f"{count:,} {kind} bindings: {result.per_s:,}/s routed, {binds_per_s:,.0f}/s bound")
            broker.stop()
            points[-1]["restart_s"] = restart_s = broker.start()
            began = time.perf_counter()
            with Connection(broker.port) as admin:
                admin.delete_exchange(exchange)
            points[-1]["delete_s"] = delete_s = time.perf_counter() - began
            self.tell(f"{bound:,} {kind} bindings: restarted in {restart_s:.2f} s, deleted in {delete_s:.2f} s")
        return points

    def _route(self, port: int, queue: str, exchange: str, bound: int) -> Driven:
        """Runs a workload like `topic`, with up to 10,000 keys from all over the bindings."""
        step = max(1, bound // ROUTED_KEYS_MAX)
        keys = [routing_key(number) for number in range(0, bound, step)]
        with Connection(port) as one, Connection(port) as other:
            consumers, publishers = [consumer(one, [queue], TOPIC)], [publisher(other, exchange, keys, TOPIC)]
            return drive(publishers, consumers, seconds=self.seconds)

    # -- Waiting messages ----------------------------------------------------------------------------------------

    def waiting(self) -> list[Point]:
        """Fills a queue, kills the process, starts, stops, starts, drains. A new broker for each point."""
        return [self._waiting(count) for count in self._steps(WAITING, "waiting")]

    def _waiting(self, count: int) -> Point:
        queue = f"{PREFIX}.waiting"
        point: Point = {"waiting": count}
        with running(Leveret, self.data) as broker:
            with Connection(broker.port) as admin:
                admin.declare_queue(queue)
            empty = broker.resident_bytes()
            if count:
                filled = fill(broker.port, queue, count)
                self._note(f"filling with {count}", filled)
                time.sleep(SETTLE_S)
                point["fill_per_s"] = filled.sent / filled.seconds
                point["bytes_each"] = (broker.resident_bytes() - empty) / count
            broker.kill()
            point["start_after_kill_s"] = broker.start()
            self._expect_waiting(broker.port, queue, count, "a kill")
            point["stop_s"] = broker.stop()
            point["start_after_stop_s"] = broker.start()
            self._expect_waiting(broker.port, queue, count, "a stop")
            if count:
                point["bytes_each_after_start"] = (broker.resident_bytes() - empty) / count
                drained = drain(broker.port, queue, filled.sent)
                self._note(f"draining {count}", drained)
                point["drain_per_s"] = drained.per_s
        self.tell(f"{count:,} waiting: " + ", ".join(f"{name} {value:,.2f}" for name, value in point.items()))
        return point

    def _expect_waiting(self, port: int, queue: str, count: int, after: str) -> None:
        with Connection(port) as admin:
            found = admin.count_messages(queue)
        if found < count:  # Whole batches were sent, so there may be a few more.
            self.problems.append(f"after {after} {found} messages of {count} were there")
            self.tell(f"PROBLEM {self.problems[-1]}")


def weigh(grown_bytes: int, count: int) -> Point:
    """Returns the memory for each of them, if there are enough to tell it from noise of the allocator."""
    return {"bytes_each": grown_bytes / count} if count >= WEIGHED_MIN else {}


def pairs(count: int) -> Workload:
    """Returns `safe` with that many publishers and consumers, with about the same number in flight in all."""
    window = max(4, SAFE.window // count)
    return dataclasses.replace(
        SAFE,
        publishers=count,
        consumers=count,
        queues=count,
        window=window,
        prefetch=window,
        batch=min(SAFE.batch, max(1, window // 4)),
    )


def routing_key(number: int) -> str:
    return f"k.{number:07}.x"


def pattern(kind: Literal["direct", "topic"], number: int) -> str:
    return routing_key(number) if kind == "direct" else f"*.{number:07}.#"


def bind_many(port: int, queue: str, exchange: str, kind: Literal["direct", "topic"], numbers: Sequence[int]) -> float:
    """Returns binds a second, until the last is answered. Only the last of a connection's binds asks for an answer."""
    with contextlib.ExitStack() as opened:
        binders = [opened.enter_context(Connection(port)) for _ in range(min(BINDERS, len(numbers)))]
        began = time.perf_counter()
        for part in _parts(numbers, BINDS_AT_ONCE * len(binders)):
            used = binders[: len(part)]
            for place, binder in enumerate(used):
                mine = part[place :: len(used)]
                binds = [calls.bind(queue, exchange, pattern(kind, number), nowait=True) for number in mine[:-1]]
                binds.append(calls.bind(queue, exchange, pattern(kind, mine[-1])))
                binder.socket.sendall(b"".join(binds))
            for binder in used:
                binder.expect(calls.answer_to(amqp.QUEUE_BIND))
        return len(numbers) / (time.perf_counter() - began)


def _parts(numbers: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for at in range(0, len(numbers), size):
        yield numbers[at : at + size]
