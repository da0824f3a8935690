"""Seeds in which every publish is made in a transaction, and every fourth transaction is rolled back."""

from __future__ import annotations

from typing import Any

import pytest

from simulation.clients import ROLLED_BACK, Client
from simulation.plan import Plan
from simulation.world import run


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
