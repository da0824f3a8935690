"""Streams, delayed messages, transactions, direct replies and limits of a run with `--special`, drawn for it.

    s0, s1      streams. s0 keeps everything; s1 has a retention by size or age
    l0          a queue bound to `late`, a delayed exchange
    tight       a vhost that allows a few connections and a few queues
    d0 …        as in any run with features; some of them have a delivery limit

Clients read streams from all kinds of offsets, delay messages, requeue messages and prove it, move messages between
queues in transactions, send requests with direct reply-to, and fill `tight`. Faults of masters hit the masters of
streams and of the delayed exchange's hidden queue, too.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any, Final

from simulation.features.queue_features import DEAD_LETTER_QUEUE, Features

STREAMS: Final = ("s0", "s1")
DELAYED_QUEUE: Final = "l0"
DELAYER: Final = "late"
HIDDEN_QUEUE: Final = f"amq.delayed.{DELAYER}"  # The hidden queue of that exchange.
TIGHT: Final = "tight"
CONNECTIONS_MAX: Final = 3
QUEUES_MAX: Final = 4
SPECIAL_RATE: Final = 0.35
DELAY_MS_MAX: Final = 20_000

STEPS: Final = (
    ("publish", 10),
    ("read", 9),
    ("delay", 8),
    ("consume", 2),
    ("get", 2),
    ("give_back", 5),
    ("transact", 4),
    ("trade", 4),
    ("call", 3),
    ("crowd", 2),
    ("settle_in", 3),
)


@dataclass(frozen=True)
class Stream:
    """The retention of a stream."""

    max_bytes: int | None = None
    max_age_s: int | None = None
    segment_bytes: int | None = None

    def arguments(self) -> dict[str, Any]:
        said: dict[str, Any] = {"x-queue-type": "stream"}
        if self.max_bytes is not None:
            said["x-max-length-bytes"] = self.max_bytes
        if self.max_age_s is not None:
            said["x-max-age"] = f"{self.max_age_s}s"
        if self.segment_bytes is not None:
            said["x-stream-max-segment-size-bytes"] = self.segment_bytes
        return said

    @property
    def keeps_all(self) -> bool:
        return self.max_bytes is None and self.max_age_s is None


def draw_streams(seed: int, nodes: int) -> dict[str, Stream]:
    rng = random.Random(f"{seed}/streams/{nodes}")
    segment_bytes = rng.choice((100, 1_000, 4_000))
    limited = rng.choice((Stream(4_000, None, segment_bytes), Stream(20_000, None, segment_bytes), Stream(None, 4)))
    return {"s0": Stream(), "s1": limited}


def limit_deliveries(rng: random.Random, found: dict[str, Features]) -> dict[str, Features]:
    """Gives some of the queues a delivery limit, most of the quorum queues. Classic queues get it by policies."""

    def limited(name: str, one: Features) -> Features:
        limit = rng.choice((0, 1, 2, 2, 5))
        if name == DEAD_LETTER_QUEUE or rng.random() < (0.2 if one.quorum else 0.5):
            return one
        return replace(one, delivery_limit=limit, by_operator=not one.quorum and not one.by_policy)

    return {name: limited(name, one) for name, one in found.items()}


def draw_special(rng: random.Random, nodes: int) -> tuple[str, dict[str, Any]]:
    """Draws a step of a client."""
    what = rng.choices([name for name, _ in STEPS], [weight for _, weight in STEPS])[0]
    return what, globals()[f"_{what}"](rng, nodes)


def _publish(rng: random.Random, nodes: int) -> dict[str, Any]:
    return {
        "queue": rng.choice(STREAMS),
        "count": rng.choice((1, 1, 2, 5, 20)),
        "padding": rng.choice((0, 0, 10, 100, 1_000, 5_000)),
        "persistent": rng.random() < 0.7,  # To a stream it makes no difference.
        "wait": rng.random() < 0.6,
    }


def _read(rng: random.Random, nodes: int) -> dict[str, Any]:
    start = rng.choice(("first", "first", "last", "next", "offset", "offset", "resume", "time", "interval"))
    return {
        "queue": rng.choice(STREAMS),
        "start": start,
        "value": rng.randrange(60) if start == "offset" else rng.randrange(1, 15),
        "prefetch": rng.choice((1, 3, 10, 50)),
        "style": rng.choice(("ack", "ack", "ack", "late", "hold")),
    }


def _delay(rng: random.Random, nodes: int) -> dict[str, Any]:
    return {
        "count": rng.choice((1, 1, 2, 5, 20)),
        "padding": rng.choice((0, 0, 10, 1_000)),
        "persistent": rng.random() < 0.8,
        "delay_ms": rng.choice((1, 50, 500, 3_000, 8_000, DELAY_MS_MAX)),
        "wait": rng.random() < 0.6,
    }


def _consume(rng: random.Random, nodes: int) -> dict[str, Any]:
    style = rng.choice(("ack", "multiple", "mixed", "late", "hold"))
    return {"queue": DELAYED_QUEUE, "prefetch": rng.choice((0, 1, 10)), "no_ack": False, "style": style}


def _get(rng: random.Random, nodes: int) -> dict[str, Any]:
    how = rng.choice(("ack", "requeue"))
    return {"queue": DELAYED_QUEUE, "count": rng.randrange(1, 5), "no_ack": False, "how": how}


def _give_back(rng: random.Random, nodes: int) -> dict[str, Any]:
    return {"queue": f"d{rng.randrange(3)}", "count": rng.randrange(1, 4), "times": rng.randrange(1, 4)}


def _transact(rng: random.Random, nodes: int) -> dict[str, Any]:
    return {
        "queue": f"d{rng.randrange(3)}",
        "count": rng.choice((1, 2, 5)),
        "padding": rng.choice((0, 100, 2_000)),
        "persistent": True,
        "back": rng.random() < 0.3,
    }


def _trade(rng: random.Random, nodes: int) -> dict[str, Any]:
    return {"queue": f"d{rng.randrange(3)}", "count": rng.randrange(1, 5), "back": rng.random() < 0.3}


def _call(rng: random.Random, nodes: int) -> dict[str, Any]:
    return {"node": rng.randrange(nodes), "other": rng.randrange(nodes), "questions": rng.randrange(1, 6)}


def _crowd(rng: random.Random, nodes: int) -> dict[str, Any]:
    return {"node": rng.randrange(nodes), "count": rng.randrange(1, 6), "seconds": round(rng.random() * 8, 3)}


def _settle_in(rng: random.Random, nodes: int) -> dict[str, Any]:
    return {"node": rng.randrange(nodes), "count": rng.randrange(1, 4), "leave": rng.random() < 0.4}


def turn_special(rng: random.Random, what: str, arguments: dict[str, Any]) -> None:
    """Turns some faults of masters into faults of masters of special queues."""
    if what in ("fell_master", "hand_over") and rng.random() < 0.5:
        arguments["queue"] = rng.choice((*STREAMS, HIDDEN_QUEUE, DELAYED_QUEUE))
