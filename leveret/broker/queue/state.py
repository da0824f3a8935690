"""The states of a queue at its master, and which of them may follow which.

Two things are true of a queue at any time, and neither follows from the other: an auto-delete queue loses its last
consumer while its master is cut off from the majority, or while it is handed over, and is then both being deleted and
frozen or held. So there are two small enums, each with a table of its legal transitions.

- `Access` says what passes through the queue now: publishes on their way in, messages on their way out.
- `Life` says whether the queue stays at this node.

    Access   OPEN ◀──▶ FROZEN        Life   HERE ◀──▶ MOVING
              ▲ ▲         ▲                  │  ╲       ╱ │
              │ └──▶ HELD ◀┘                 │   DELETING  │
              ▼                              │       │     │
            SEALED                           └───▶ GONE ◀──┘

`Queue` alone changes either, by verbs that say what happens (`freeze`, `hold`, `begin_move` …); all of them go through
one method for each enum, which asserts that the transition is in the table. What is asked for every message stands in
plain attributes that this method keeps: `Queue.parked` (None: publishes are taken), `Queue.frozen` and `Queue.deleted`.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class Access(Enum):
    """Says which operations a queue lets through now."""

    OPEN = auto()
    """Publishes are taken, and messages are handed out."""

    FROZEN = auto()
    """Publishes are taken, and nothing is handed out: the queue has mirrors, and its master has no contact to the
    majority. Another node may lead the queue already, so nothing is confirmed either."""

    HELD = auto()
    """Publishes and questions wait, and nothing is handed out: the queue is handed over to another master, or this node
    does not know yet who leads it, or its policy stops it while a mirror is filled."""

    SEALED = auto()
    """Publishes and questions wait, and nothing is left to hand out: the queue is at the end of its way to another node
    (see `moving`), which has all its messages."""


class Life(Enum):
    """Says whether a queue stays at this node."""

    HERE = auto()
    """The queue is at this node, and is to stay."""

    MOVING = auto()
    """The queue is on its way to another node (`Queue.departure`). Questions wait until it is there, or stays."""

    DELETING = auto()
    """The deletion of the queue is proposed and will be agreed on. Questions wait until it is. A move that was under
    way goes on until then."""

    GONE = auto()
    """The queue is deleted, or another object stands for it: another node leads it, or this one in another epoch."""


ACCESS_LEGAL: Final[dict[Access, frozenset[Access]]] = {
    Access.OPEN: frozenset({Access.FROZEN, Access.HELD, Access.SEALED}),
    Access.FROZEN: frozenset({Access.OPEN, Access.HELD}),
    Access.HELD: frozenset({Access.OPEN, Access.FROZEN}),
    Access.SEALED: frozenset({Access.OPEN}),  # Mirrored queues do not move, so nothing freezes or holds a sealed one.
}

LIFE_LEGAL: Final[dict[Life, frozenset[Life]]] = {
    Life.HERE: frozenset({Life.MOVING, Life.DELETING, Life.GONE}),
    Life.MOVING: frozenset({Life.HERE, Life.DELETING, Life.GONE}),
    Life.DELETING: frozenset({Life.GONE}),  # A deletion that was proposed is not taken back.
    Life.GONE: frozenset(),
}
