"""A client of a vhost with limits bears refusals by limits, and what every client bears, and nothing else."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from simulation.amqp import protocol as p
from simulation.checkers.ledger import Ledger
from simulation.clients.calls import TightSession
from simulation.clients.session import TIMED_OUT


class Future:
    def done(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("code", "text", "is_disturbed", "is_refused", "is_wrong"),
    [
        (530, "connection limit (3) is reached", False, True, False),
        (541, f"the {TIMED_OUT}: try again", True, False, False),
        (541, f"the {TIMED_OUT}: try again", False, False, True),
        (541, "a bug", True, False, True),
        (530, "no such vhost", True, False, True),
        (320, "the node is stopped", False, False, False),
    ],
)
def test_the_broker_closes_the_connection(
    code: int, text: str, is_disturbed: bool, is_refused: bool, is_wrong: bool
) -> None:
    failures: list[str] = []
    ledger = Ledger(failures.append, lambda who, text: None, lambda: 1.0)
    ledger.on_disturbed(2.0 if is_disturbed else 0.0)
    loop = SimpleNamespace(create_future=Future, scheduler=SimpleNamespace(now=1.0))
    session = TightSession("c0/1", "n1", cast("Any", loop), ledger, random.Random(1))
    written: list[bytes] = []
    session.transport = cast("Any", SimpleNamespace(write=written.append, close=lambda: None))
    session._on_method(p.Received(0, "connection.close", (code, text, 0, 0)))
    assert session.lost and written == [p.method(0, "connection.close-ok")]
    assert (session.refused, bool(failures)) == (is_refused, is_wrong)
