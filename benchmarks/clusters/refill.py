"""Measures what clients notice while a mirror that lacks a million messages is synchronised.

A queue has copies at two of three nodes. A load runs at full speed, and after a while the policy names the third node
as well, so that a mirror there is synchronised. Throughput is compared over three periods of the same run: *before*,
with two copies; *during*, from the new policy to the moment at which the third copy is in sync; *after*, with three.
The permanent cost of a third copy is the difference between before and after, which the synchronisation does not
cause. So both ratios are shown, during to before and during to after.

Two ways:

- `same`: the load goes through the queue that holds the million. Its publisher and its consumer keep step, so that the
  million stays; but the messages there are others in the end, and some that the mirror would have had to fetch are
  consumed before it comes to them.
- `beside`: the load is in another queue, of the same nodes, that has three copies from the start. The mirror must fetch
  all of the million.

RabbitMQ's mirrors are synchronised only if `ha-sync-mode` is automatic, and the queue is blocked meanwhile.
"""

from __future__ import annotations

import bisect
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.ruler.brokers import Broker, Policy
from benchmarks.ruler.calls import Connection
from benchmarks.ruler.load import Consumer, Publisher, drive
from benchmarks.ruler.workloads import PREFIX, WORKLOADS, encode, scene
from benchmarks.single.compare import fill, patience_s
from leveret.client.amqp import BrokerError

WAYS: Final = ("same", "beside")
FILLED, BUSY = f"{PREFIX}.filled", f"{PREFIX}.busy"
SAFE: Final = next(workload for workload in WORKLOADS if workload.name == "safe")
AHEAD_MAX: Final = 20_000  # Messages by which the publisher may be ahead of the consumer.
FILL_S_MAX: Final = 300.0


@dataclass
class Refill:
    before_per_s: float
    during_per_s: float
    after_per_s: float
    stall_s: float  # The longest time without a delivery during the synchronisation.
    fill_s: float
    errors: list[str]

    @property
    def is_good(self) -> bool:
        return not self.errors

    def numbers(self) -> dict[str, float]:
        return {
            "before_per_s": self.before_per_s,
            "during_per_s": self.during_per_s,
            "after_per_s": self.after_per_s,
            "kept": self.during_per_s / max(1.0, self.before_per_s),
            "kept_of_after": self.during_per_s / max(1.0, self.after_per_s),
            "stall_s": self.stall_s,
            "fill_s": self.fill_s,
        }


class Leading(Publisher):
    """A publisher that stays close to its consumer, and drives it."""

    follower: Following

    def may_begin(self) -> bool:
        return super().may_begin() and self.sent - self.follower.acked < AHEAD_MAX

    def on_readable(self) -> None:
        super().on_readable()
        self.follower.catch_up()


class Following(Consumer):
    """A consumer that acknowledges no more than was confirmed, so that the messages in the queue are not used up."""

    leader: Leading

    def on_readable(self) -> None:
        super().on_readable()
        self.leader.update_interest()

    def ack_all(self) -> None:
        if self.leader.stopped or self.delivered - SAFE.prefetch <= self.leader.confirmed:
            super().ack_all()

    def catch_up(self) -> None:
        if self.ack_every and not self.unsent and self.delivered - self.acked >= self.ack_every:
            self.ack_all()
            self.update_interest()


class Timeline:
    """How many messages had been delivered when, by the system's clock."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.counts: list[int] = []

    def note(self, now: float, count: int) -> None:
        self.times.append(now)
        self.counts.append(count)

    def _at(self, moment: float) -> int:
        return min(bisect.bisect_left(self.times, moment), len(self.times) - 1)

    def per_s(self, start: float, end: float) -> float:
        first, last = self._at(start), self._at(end)
        took = self.times[last] - self.times[first]
        return (self.counts[last] - self.counts[first]) / took if took > 0 else 0.0

    def longest_stall_s(self, start: float, end: float) -> float:
        """Returns the longest time without a delivery."""
        first, last = self._at(start), self._at(end)
        since, longest = self.times[first], 0.0
        for at in range(first + 1, last + 1):
            longest = max(longest, self.times[at] - since)
            if self.counts[at] != self.counts[at - 1]:
                since = self.times[at]
        return longest


class Filling(threading.Thread):
    """Asks for the third copy and waits for it, in another thread, since the load must continue."""

    def __init__(self, node: Broker, policy: Policy) -> None:
        super().__init__(name="filling", daemon=True)
        self.node, self.policy = node, policy
        self.span: tuple[float, float] | None = None
        self.error: str | None = None

    def run(self) -> None:
        try:
            self.span = self.node.add_copies(self.policy, FILLED, 3)
        except BrokerError as error:
            self.error = str(error)


class Stages:
    """The periods before, during and after; tells `drive` when publishing ends."""

    def __init__(self, filling: Filling, consumer: Consumer, seconds: float) -> None:
        self.filling, self.consumer, self.seconds = filling, consumer, seconds
        self.timeline = Timeline()
        self.began = self.asked = 0.0

    def is_over(self) -> bool:
        now = time.time()
        self.began = self.began or now
        self.timeline.note(now, self.consumer.delivered)
        if not self.asked and now > self.began + self.seconds:
            self.asked = now
            self.filling.start()
        if self.filling.error:
            return True
        span = self.filling.span
        return span is not None and now > span[1] + self.seconds


def refill(nodes: Sequence[Broker], way: str, messages: int, seconds: float) -> Refill:
    """Runs with three nodes, the clients at the first, which is the master of both queues."""
    master = nodes[0]
    two = {"ha-mode": "nodes", "ha-params": [node.node for node in nodes[:2]], "ha-sync-mode": "automatic"}
    all_of_them = {"ha-mode": "all", "ha-sync-mode": "automatic"}
    master.set_policy(Policy("busy", f"^{BUSY}$", all_of_them))
    master.set_policy(Policy("filled", f"^{FILLED}$", two))
    busy = FILLED if way == "same" else BUSY
    with scene(master.port, sorted({FILLED, busy})), Connection(master.port) as one, Connection(master.port) as other:
        master.await_copies(FILLED, 2)
        if busy != FILLED:
            master.await_copies(busy, 3)
        filled = fill(master.port, FILLED, messages)
        leader = Leading(one, encode("", [busy], SAFE), SAFE.batch, SAFE.window)
        other.set_prefetch(SAFE.prefetch)
        follower = Following(other, [busy], SAFE.ack_every)
        leader.follower, follower.leader = follower, leader
        filling = Filling(master, Policy("filled", f"^{FILLED}$", all_of_them))
        stages = Stages(filling, follower, seconds)
        waiting = filled.sent if busy == FILLED else 0
        result = drive(
            [leader],
            [follower],
            seconds=FILL_S_MAX,
            waiting=waiting,
            finish_s=patience_s(messages),
            until=stages.is_over,
        )
    errors = [*filled.errors, *result.errors, *([filling.error] if filling.error else [])]
    if not result.is_good and not errors:
        errors.append(f"{result.delivered} of {result.expected} came")
    if filling.span is None:
        return Refill(0, 0, 0, 0, 0, [*errors, f"no third copy within {FILL_S_MAX} s"])
    began, ended = filling.span
    line = stages.timeline
    return Refill(
        line.per_s(stages.began + stages.seconds / 4, stages.asked),  # Not the very first moments.
        line.per_s(began, ended),
        line.per_s(ended, ended + seconds),
        line.longest_stall_s(began, ended),
        ended - began,
        errors,
    )
