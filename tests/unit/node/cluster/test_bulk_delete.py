"""A vhost with very many queues goes in pieces, none of which is long."""

from __future__ import annotations

import asyncio

import pytest

from leveret.metadata.model import commands as c
from leveret.metadata.model.refusals import Refusal
from leveret.metadata.model.view import View
from leveret.metadata.store import Applied, Metadata
from leveret.node.cluster.bulk_delete import delete_vhost, forget_node
from leveret.node.cluster.paced_commands import AT_ONCE


class Agreeing:
    """A cluster of one: what was proposed in a pass of the loop is applied in the next, all at once."""

    def __init__(self) -> None:
        self.has_clients = True
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


# -- Of a node -------------------------------------------------------------------------------------------------------


async def test_a_node_with_few_queues_goes_at_once(cluster: Agreeing) -> None:
    assert (await forget_node(cluster, cluster.metadata, "one@host")).refused is None
    assert cluster.batches == [[c.ForgetNode("one@host")]] and not cluster.metadata.queues


def mirrored(cluster: Agreeing, name: str, in_sync: tuple[str, ...], *others: str) -> None:
    disks = tuple((node, f"disk of {node}") for node in in_sync)
    view = View(1, 1, in_sync[0], (*in_sync, *others), disks)
    assert cluster.apply(c.DeclareQueue("shop", name, node=in_sync[0], view=view)).refused is None


async def test_a_node_with_many_goes_in_pieces(cluster: Agreeing) -> None:
    """With the same outcome as in one."""
    whole = Agreeing()
    whole.apply(c.AddVhost("other"))
    for one in (cluster, whole):
        one.apply(c.AddVhost("shop"))
        for number in range(AT_ONCE):
            one.apply(c.DeclareQueue("shop", f"own{number}", node="one@host"))
            one.apply(c.DeclareQueue("shop", f"other{number}", node="two@host"))
            mirrored(one, f"led{number}", ("one@host", "two@host"), "three@host")
            mirrored(one, f"mirrored{number}", ("two@host",), "one@host")
        mirrored(one, "alone", ("one@host",))
        mirrored(one, "not in sync", ("one@host",), "two@host")
    whole.apply(c.DeclareQueue("other", "q", node="two@host"))
    cluster.apply(c.DeleteQueue("shop", "q"))
    cluster.apply(c.DeleteQueue("other", "q"))
    cluster.apply(c.DeclareQueue("other", "q", node="two@host"))
    assert (await forget_node(cluster, cluster.metadata, "one@host")).refused is None
    assert [len(batch) for batch in cluster.batches] == [AT_ONCE, AT_ONCE, AT_ONCE, 1, 1]
    whole.apply(c.ForgetNode("one@host"))

    def state(one: Agreeing) -> dict[tuple[str, str], tuple[str, View | None]]:
        return {key: (spec.node, spec.view) for key, spec in one.metadata.queues.items()}

    assert state(cluster) == state(whole) and len(state(whole)) == 3 * AT_ONCE + 1


async def test_a_queue_that_another_node_gets_meanwhile_is_not_lost(cluster: Agreeing) -> None:
    for number in range(AT_ONCE):
        mirrored(cluster, f"q{number}", ("one@host",), "two@host")
    mirrored(cluster, "filled", ("one@host",), "two@host")
    forgetting = asyncio.create_task(forget_node(cluster, cluster.metadata, "one@host"))
    await asyncio.sleep(0)
    spec = cluster.metadata.queues["shop", "filled"]
    assert spec.view is not None
    filled = spec.view._replace(version=2, in_sync=(*spec.view.in_sync, ("two@host", "disk of two@host")))
    assert cluster.apply(c.ChangeView("shop", "filled", spec.id, filled)).refused is None
    assert (await forgetting).refused is None
    assert [(key, spec.node) for key, spec in cluster.metadata.queues.items() if key[0] == "shop"] == [
        (("shop", "filled"), "two@host")
    ]
