"""Paces many commands for one purpose (an import, the deletion of a vhost), so that clients notice little of them.

Each command is applied at every node, and a thousand mirrored queues take each node a fifth of a second. So such a bulk
is proposed in portions, and after each portion there is a rest as long as the portion took, for all other work of the
nodes. With shorter rests others get half of what they had, or less (`docs/scaling.md` has the figures). Where no node
has clients, nobody would notice, and there are no rests.

Clients that declare or delete very much are paced as well, while clients publish: `ClientCommands`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from leveret.metadata.model.commands import Command
    from leveret.metadata.store import Applied

AT_ONCE: Final = 200  # Commands: even with mirrors, a node applies them in several turns of some milliseconds each.
REST: Final = 1.0  # For each second that a portion took.
REST_S_MAX: Final = 1.0  # A portion that took longer has waited for something else.
FREE: Final = 50  # Commands of a client that are not paced: whatever an application sets up when it starts.
WINDOW_S: Final = 5.0  # A client's commands count for one to two windows.
CLIENTS_AT_ONCE: Final = 50  # Clients that declare in a loop wait for whole portions.
CLIENTS_REST: Final = 1.5  # For each second that a portion of clients' commands took: other nodes may do the same.
CLIENTS_REST_S_MAX: Final = 0.25


class Agreeing(Protocol):
    async def change(self, command: Command) -> Applied: ...

    @property
    def has_clients(self) -> bool:
        """Whether a node of the cluster has clients."""


async def agree(cluster: Agreeing, portion: Sequence[Command]) -> list[Applied]:
    """Has the cluster apply a portion of a bulk, then rests; refusals are in the results."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    answers = await asyncio.gather(*map(cluster.change, portion))
    if cluster.has_clients:
        await asyncio.sleep(min(REST * (loop.time() - began), REST_S_MAX))
    return list(answers)


Then = Callable[["Applied"], None]
Propose = Callable[["Command", Then], None]


class ClientCommands:
    """Paces clients that declare, bind or delete in a loop while others publish.

    A client may have `FREE` commands proposed at once, whatever others do. Further ones wait until the portion before
    them is applied and a rest half as long again as that portion took is over; all that wait by then are the next
    portion.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, propose: Propose, is_serving: Callable[[], bool]) -> None:
        self._loop = loop
        self._propose = propose
        self._is_serving = is_serving  # Returns whether there are publishers that would notice.
        self._counts: dict[str, int] = {}  # By client: its commands in this window.
        self._counts_before: dict[str, int] = {}  # And in the last one.
        self._window_ends = 0.0
        self._waiting: deque[tuple[Command, Then]] = deque()
        self._under_way = 0  # Commands of the present portion that are not applied yet.
        self._began = 0.0  # When the portion was proposed.
        self._resting: asyncio.TimerHandle | None = None

    def propose(self, client: str, command: Command, then: Then) -> None:
        if self._is_free(client) or not self._is_serving():
            self._propose(command, then)
            return
        self._waiting.append((command, then))
        if not self._under_way and self._resting is None:
            self._propose_portion()

    def stop(self) -> None:
        self._waiting.clear()
        if self._resting is not None:
            self._resting.cancel()

    def _is_free(self, client: str) -> bool:
        now = self._loop.time()
        if now >= self._window_ends:
            is_next = now < self._window_ends + WINDOW_S
            self._counts_before, self._counts = self._counts if is_next else {}, {}
            self._window_ends = now + WINDOW_S
        self._counts[client] = count = self._counts.get(client, 0) + 1
        return count + self._counts_before.get(client, 0) <= FREE

    def _propose_portion(self) -> None:
        self._began = self._loop.time()
        portion = [self._waiting.popleft() for _ in range(min(CLIENTS_AT_ONCE, len(self._waiting)))]
        self._under_way = len(portion)
        for command, then in portion:
            self._propose(command, partial(self._on_applied, then))

    def _on_applied(self, then: Then, applied: Applied) -> None:
        self._under_way -= 1
        if not self._under_way:
            took_s = self._loop.time() - self._began
            rest_s = min(CLIENTS_REST * took_s, CLIENTS_REST_S_MAX) if self._is_serving() else 0.0
            self._resting = self._loop.call_later(rest_s, self._on_rested)
        then(applied)

    def _on_rested(self) -> None:
        self._resting = None
        if self._waiting:
            self._propose_portion()
