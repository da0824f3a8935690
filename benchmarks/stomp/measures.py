"""Measures STOMP (`stomp`): one publisher and one subscriber, the brokers in turn in the same run."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.ruler.brokers import running
from benchmarks.stomp.brokers import StompBroker
from benchmarks.stomp.load import Client, Measured, Publisher, Subscriber, drive, frame

PART: Final = "stomp"
BODY: Final = b"x" * 100
WINDOW: Final = 2_000
BATCH: Final = 50
PREFETCH: Final = 2_000
BLOBS: Final = 20
SETTLE_S, QUICK_SETTLE_S = 1.0, 0.1

Rates = dict[str, dict[str, float]]  # row → broker → messages a second


class Row(NamedTuple):
    """What messages ask for, and how they are acknowledged."""

    name: str
    about: str
    mode: str  # Of the subscription: `ack`.
    has_receipts: bool
    is_varied: bool = False


ROWS: Final = (
    Row("receipts", "persistent with a receipt each, acknowledged many at a time (`client`)", "client", True),
    Row("individual", "the same, acknowledged one by one (`client-individual`)", "client-individual", True),
    Row("varied", "like receipts; bodies of 20 to 4,000 bytes, and a header of its own for each", "client", True, True),
    Row("plain", "transient, no receipts, no acknowledgements (`auto`)", "auto", False),
)


class Measures:
    """Measures brokers of `kinds`. The results are in its fields, with keys that JSON can have."""

    def __init__(
        self,
        kinds: Sequence[type[StompBroker]],
        rounds: int,
        seconds: float,
        quick: bool,
        data: Path | None,
        tell: Callable[[str], None],
    ) -> None:
        self.kinds, self.rounds, self.seconds, self.data, self.tell = kinds, rounds, seconds, data, tell
        self.settle_s = QUICK_SETTLE_S if quick else SETTLE_S
        self.rates: Rates = {}
        self.rounds_run: list[dict[str, Any]] = []
        self.problems: list[str] = []
        self.versions: dict[str, str] = {}

    def run(self) -> None:
        with contextlib.ExitStack() as started:
            brokers: list[StompBroker] = []
            for kind in self.kinds:
                self.tell(f"starting {kind.name} with STOMP")
                brokers.append(started.enter_context(running(kind, self.data)))
                self.versions[kind.name] = brokers[-1].version
            for row in ROWS:
                self._row(row, brokers)

    def _row(self, row: Row, brokers: Sequence[StompBroker]) -> None:
        rates: dict[str, list[float]] = {broker.name: [] for broker in brokers}
        for number in range(1, self.rounds + 1):
            for broker in brokers:
                result = self._run(row, broker)
                rates[broker.name].append(result.per_s)
                where = f"STOMP, {row.name}, round {number}, {broker.name}"
                self.tell(f"{where}: {result.per_s:,}/s, client {result.client_cpu:.0%} of a processor")
                if result.errors:
                    self.problems.append(f"{where}: {result}")
                    self.tell(f"PROBLEM {self.problems[-1]}")
                values = {"per_s": result.per_s} | dataclasses.asdict(result)
                self.rounds_run.append({"workload": row.name, "round": number, "broker": broker.name} | values)
        self.rates[row.name] = {name: statistics.median(values) for name, values in rates.items()}

    def _run(self, row: Row, broker: StompBroker) -> Measured:
        queue = f"/queue/benchmark-{len(self.rounds_run)}"  # Of each run its own.
        with Client(broker.stomp_port) as publishing, Client(broker.stomp_port) as subscribing:
            asked = frame(
                "SUBSCRIBE", id="1", destination=queue, ack=row.mode, prefetch_count=str(PREFETCH), receipt="begun"
            )
            subscribing.ask(asked, b"RECEIPT\n")
            publisher = Publisher(publishing, blobs(row, queue), BATCH, WINDOW, row.has_receipts)
            time.sleep(self.settle_s)  # Work left from the preparation is not part of the measurement.
            return drive(publisher, Subscriber(subscribing, row.mode), self.seconds)


def blobs(row: Row, queue: str) -> list[bytes]:
    """Returns what a publisher sends, `BATCH` frames at a time."""
    frames = []
    for number in range(BLOBS * BATCH):
        body = b"x" * round(20 * 200 ** (number * 37 % 100 / 99)) if row.is_varied else BODY
        headers = {"destination": queue, "content_length": str(len(body))}
        if row.has_receipts:
            headers |= {"persistent": "true", "receipt": f"r{number}"}
        if row.is_varied:
            headers |= {"trace": f"t-{number:08}"}
        frames.append(frame("SEND", body, **headers))
    return [b"".join(frames[at : at + BATCH]) for at in range(0, len(frames), BATCH)]
