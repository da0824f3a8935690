"""Seeds in which every publish is made in a transaction, and every fourth transaction is rolled back."""

from __future__ import annotations

from typing import Any

import pytest

from simulation.clients.client import ROLLED_BACK, Client
from simulation.plan import Plan
from simulation.world import Violation, run
from tests.support.mutating import Change, replace


@pytest.fixture(autouse=True)
def _transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    async def do_publish(
        client: Client, queue: str, count: int, padding: int, persistent: bool, wait: bool, **more: Any
    ) -> None:
        assert client.doing is not None
        await client.do_transact(queue, count, padding, persistent, back=client.doing.number % 4 == 0)

    monkeypatch.setattr(Client, "do_publish", do_publish)


@pytest.mark.parametrize(("nodes", "mirrored", "seeds"), [(1, False, 5), (3, False, 5), (3, True, 4)])
def test_seeds(nodes: int, mirrored: bool, seeds: int) -> None:
    worlds = [run(Plan(seed, nodes, mirrored=mirrored)) for seed in range(seeds)]
    messages = [message for world in worlds for message in world.ledger.messages.values()]
    assert sum(message.state == "confirmed" for message in messages) > 20 * seeds
    back = [message for message in messages if message.state == ROLLED_BACK]
    assert len(back) > 2 * seeds
    assert not any(message.deliveries for message in back)


def test_a_disk_that_stalls() -> None:
    """A commit has an answer in time: see `simulation.checkers.answer_checker`."""
    worlds = [run(Plan(seed, 3, ailing=True)) for seed in (1, 2)]
    assert max(world.answers.longest_s for world in worlds) > 0.5


@pytest.mark.long
def test_the_seeds_notice_a_commit_that_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    late = "self.channel.broker.outboxes.looks - oldest.looks <= looks"
    replace(monkeypatch, "nobody is told that a commit takes too long", Change("Transaction.overdue", late, "True"))
    with pytest.raises(Violation, match="has had no answer"):
        for seed in range(1, 20):
            run(Plan(seed, 3, strategies=True, ailing=True))
