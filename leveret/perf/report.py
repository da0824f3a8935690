"""Reports the results of a load: a line each second and a summary for people, one JSON object for programs."""

from __future__ import annotations

from typing import Any, NamedTuple

from leveret.perf.histogram import Histogram

INTERVALS_MAX = 100_000  # About a day; the JSON of a longer run has only the first ones.


class Counts(NamedTuple):
    sent: int = 0
    confirmed: int = 0
    nacked: int = 0
    returned: int = 0
    received: int = 0

    def minus(self, other: Counts) -> Counts:
        return Counts(*(now - before for now, before in zip(self, other, strict=True)))


class Interval(NamedTuple):
    at_s: float  # when it ended, since the start
    seconds: float
    counts: Counts
    latency: Histogram
    confirm: Histogram
    blocked: int  # publishers that the broker has asked to wait

    def as_json(self) -> dict[str, Any]:
        return {
            "time": round(self.at_s, 3),
            **{f"{name}_per_s": round(count / self.seconds) for name, count in self.counts._asdict().items()},
            "latency_ms": self.latency.milliseconds(),
            "confirm_latency_ms": self.confirm.milliseconds(),
            "blocked_publishers": self.blocked,
        }


class Result:
    """The results of a run. Rates are those of the time of publishing; later arrivals are only in `total`."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.during = Counts()
        self.total = Counts()
        self.latency = Histogram()
        self.confirm = Histogram()
        self.intervals: list[dict[str, Any]] = []
        self.errors: list[str] = []

    def add(self, interval: Interval) -> None:
        self.latency.merge([interval.latency])
        self.confirm.merge([interval.confirm])
        if len(self.intervals) < INTERVALS_MAX:
            self.intervals.append(interval.as_json())

    def finish(self, seconds: float, counts: Counts) -> None:
        self.seconds, self.during = max(seconds, 1e-6), counts

    def per_s(self, count: int) -> int:
        return round(count / self.seconds)

    def as_json(self, name: str) -> dict[str, Any]:
        summary = {
            "seconds": round(self.seconds, 3),
            **self.total._asdict(),
            "sent_per_s": self.per_s(self.during.sent),
            "confirmed_per_s": self.per_s(self.during.confirmed),
            "received_per_s": self.per_s(self.during.received),
            "latency_ms": self.latency.milliseconds(),
            "confirm_latency_ms": self.confirm.milliseconds(),
        }
        return {"id": name, "summary": summary, "intervals": self.intervals, "errors": self.errors}


# -- For people ----------------------------------------------------------------------------------------------------

HEADING = f"{'':>8} {'sent/s':>11} {'received/s':>11}   {'latency ms: median   95th   99th    max':<42}"
CONFIRM_HEADING = f"{'confirmed/s':>11}   confirm ms: median   95th   99th    max"


def heading(confirms: bool) -> str:
    return (HEADING + (CONFIRM_HEADING if confirms else "")).rstrip()


def line(interval: Interval, confirms: bool) -> str:
    def rate(count: int) -> str:
        return f"{round(count / interval.seconds):,}"

    counts = interval.counts
    words = [f"{interval.at_s:>6.1f} s {rate(counts.sent):>11} {rate(counts.received):>11}   "]
    words.append(f"{_latencies(interval.latency):>39}   ")
    if confirms:
        words.append(f"{rate(counts.confirmed):>11}   {_latencies(interval.confirm):>39}")
    for count, name in ((counts.nacked, "nacked/s"), (counts.returned, "returned/s")):
        if count:
            words.append(f"   {rate(count)} {name}")
    if interval.blocked:
        words.append(f"   {interval.blocked} publishers blocked by the broker")
    return "".join(words).rstrip()


def _latencies(histogram: Histogram) -> str:
    found = histogram.milliseconds()
    if found is None:
        return ""
    median, *others = (found[name] for name in ("median", "95th", "99th", "max"))
    return f"{_ms(median):>18} " + " ".join(f"{_ms(one):>6}" for one in others)


def _ms(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def summary(result: Result, confirms: bool, consumers: bool) -> str:
    total, during = result.total, result.during
    lines = [f"in {result.seconds:.1f} s", f"sent      {total.sent:>13,}   {result.per_s(during.sent):>11,}/s"]
    if confirms:
        lines.append(f"confirmed {total.confirmed:>13,}   {result.per_s(during.confirmed):>11,}/s")
    if total.nacked:
        lines.append(f"nacked    {total.nacked:>13,}")
    if total.returned:
        lines.append(f"returned  {total.returned:>13,}")
    if consumers:
        lines.append(f"received  {total.received:>13,}   {result.per_s(during.received):>11,}/s")
    for name, histogram in (("latency", result.latency), ("confirm", result.confirm)):
        found = histogram.milliseconds()
        if found is not None:
            lines.append(f"{name}   " + "   ".join(f"{word} {_ms(value)}" for word, value in found.items()) + "   ms")
    return "\n".join(lines)
