"""Non-durable exchanges end with the last node that runs.

RabbitMQ keeps what is not durable in memory only, at all nodes of the cluster. Such an exchange outlives any node, as
long as another one runs meanwhile, and is gone when all of them were stopped at the same time. Here it is part of the
metadata, which is on disk. So a node that starts, and finds such exchanges, asks the other nodes whether one of them
has been running:

    a peer says "I know what is not durable"      it has been running, or has decided this: keep the exchanges
    nobody says so, and this node leads           all were stopped: have the cluster drop them, then serve clients
    nobody says so, and another node leads        wait: that one decides

**Only the leader drops**, and nobody serves clients before it has: no client can have declared an exchange anew that
is then dropped with the old ones. A peer without a link is waited for a moment; if a majority has started without it,
it is taken for stopped. Queues are another matter: each has a home, and ends with it (`NodeStarted`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Final

from leveret.links.frame_types import HELLO
from leveret.metadata.model.commands import NodeStarted
from leveret.node.cluster.consensus import split_address
from leveret.node.sockets.peer_socket import CallFailed

if TYPE_CHECKING:
    from leveret.node.node import Node

logger = logging.getLogger("leveret.cluster")

KNOWN: Final = "knows_transient"  # In the answer to HELLO.
CALL_S: Final = 2.0
ABSENT_S: Final = 2.0  # How long a node without a link is waited for.
RETRY_S: Final = 0.05


class TransientExchanges:
    """Decides at a node's start whether non-durable exchanges are kept. `is_known`: that is decided, and the metadata
    has only those that exist."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.is_known = False

    async def settle(self) -> None:
        """Decides it. Called after the node has caught up with the metadata, and before it serves clients."""
        cluster = self.node.cluster
        deadline = self.node.loop.time() + ABSENT_S
        while not cluster.stopped and self._exchanges() and not await self._is_known_elsewhere():
            is_complete = all(member.running for member in cluster.members())
            if cluster.raft.is_leader and (is_complete or self.node.loop.time() >= deadline):
                logger.info("all nodes were stopped: %d non-durable exchanges are gone", self._exchanges())
                await cluster.change(NodeStarted("", alone=True))
            else:
                await asyncio.sleep(RETRY_S)
        self.is_known = True

    def _exchanges(self) -> int:
        return sum(not spec.durable for spec in self.node.metadata.exchanges.values())

    async def _is_known_elsewhere(self) -> bool:
        cluster = self.node.cluster
        peers = [one for one in cluster.members() if one.running and one.uuid != cluster.me.id]
        return any(await asyncio.gather(*(self._is_known_at(split_address(one.address)) for one in peers)))

    async def _is_known_at(self, address: tuple[str, int]) -> bool:
        try:
            answer = json.loads(await self.node.peers.call(address, HELLO, b"{}", CALL_S))
        except (CallFailed, ValueError) as error:
            logger.debug("asking %s what is not durable: %s", address, error)
            return False
        # Versions that do not know the question drop nothing, so neither does a node beside them.
        return isinstance(answer, dict) and answer.get(KNOWN, True) is True
