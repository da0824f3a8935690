"""A vhost with very many queues goes in pieces, none of which is long."""

from __future__ import annotations

import asyncio

import pytest

from leveret.cluster import commands as c
from leveret.cluster.refusals import Refusal
from leveret.cluster.store import Applied, Metadata
from leveret.node.emptying import AT_ONCE, delete_vhost


class Agreeing:
    """A cluster of one: what was proposed in a pass of the loop is applied in the next, all at once."""

    def __init__(self) -> None:
        self.metadata = Metadata()
        self.batches: list[list[c.Command]] = []
        self.refusal: Refusal | None = None
        self._proposed: list[tuple[c.Command, asyncio.Future[Applied]]] = []

    def apply(self, command: c.Command) -> Applied:
        return self.metadata.apply(command)

    async def change(self, command: c.Command) -> Applied:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Applied] = loop.create_future()
        if not self._proposed:
            loop.call_soon(self._agree)
        self._proposed.append((command, done))
        return await done

    def _agree(self) -> None:
        proposed, self._proposed = self._proposed, []
        self.batches.append([command for command, _ in proposed])
        for command, done in proposed:
            done.set_result(Applied(0, self.refusal, ()) if self.refusal is not None else self.apply(command))


@pytest.fixture
def cluster() -> Agreeing:
    cluster = Agreeing()
    for vhost in ("shop", "other"):
        cluster.apply(c.AddVhost(vhost))
        cluster.apply(c.DeclareQueue(vhost, "q", node="one@host"))
    return cluster


async def test_a_small_one_goes_whole(cluster: Agreeing) -> None:
    assert (await delete_vhost(cluster, cluster.metadata, "shop")).refused is None
    assert cluster.batches == [[c.DeleteVhost("shop")]]


async def test_queues_go_first_where_there_are_many(cluster: Agreeing) -> None:
    for number in range(2 * AT_ONCE):
        cluster.apply(c.DeclareQueue("shop", f"q{number}", node="one@host"))
    deleting = asyncio.create_task(delete_vhost(cluster, cluster.metadata, "shop"))
    while len(cluster.batches) < 2:
        await asyncio.sleep(0)
    cluster.apply(c.DeclareQueue("shop", "late", node="one@host"))
    cluster.apply(c.DeleteQueue("shop", f"q{2 * AT_ONCE - 1}"))  # Somebody else is faster.
    assert (await deleting).refused is None
    assert [len(batch) for batch in cluster.batches] == [AT_ONCE, AT_ONCE, 1, 1]
    assert cluster.batches[-1] == [c.DeleteVhost("shop")]
    assert list(cluster.metadata.queues) == [("other", "q")]
    assert "shop" not in cluster.metadata.vhosts


async def test_what_is_refused_ends_it(cluster: Agreeing) -> None:
    for number in range(2 * AT_ONCE):
        cluster.apply(c.DeclareQueue("shop", f"q{number}", node="one@host"))
    cluster.refusal = Refusal(506, "no majority")
    assert (await delete_vhost(cluster, cluster.metadata, "shop")).refused == cluster.refusal
    assert len(cluster.batches) == 1


async def test_one_that_is_not_there(cluster: Agreeing) -> None:
    assert (await delete_vhost(cluster, cluster.metadata, "shops")).refused is not None
