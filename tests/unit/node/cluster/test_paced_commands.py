"""Many commands for one purpose leave half of the time to others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from leveret.metadata.model.commands import Command, DeleteVhost
from leveret.metadata.store import Applied
from leveret.node.cluster import paced_commands

COMMANDS = [DeleteVhost(f"v{number}") for number in range(5)]


class Cluster:
    """Answers all that is under way at once, when it is told to."""

    def __init__(self, has_clients: bool = True) -> None:
        self.has_clients = has_clients
        self.under_way: list[Command] = []
        self.may_answer = asyncio.Event()

    async def change(self, command: Command) -> Applied:
        self.under_way.append(command)
        await self.may_answer.wait()
        return cast(Applied, command)


@pytest.mark.parametrize(("took_s", "rest_s"), [(0.25, 0.25), (60.0, paced_commands.REST_S_MAX)])
async def test_a_portion_is_under_way_together_and_a_rest_follows(
    took_s: float, rest_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, cluster, slept = asyncio.get_running_loop(), Cluster(), list[float]()
    began = now = loop.time()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(loop, "time", lambda: now)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    task = asyncio.ensure_future(paced_commands.agree(cluster, COMMANDS))
    for _ in range(20):
        await _pass()
    assert cluster.under_way == COMMANDS and not slept
    now = began + took_s
    cluster.may_answer.set()
    assert cast(list[Any], await task) == COMMANDS
    assert slept == [pytest.approx(rest_s)]


async def test_in_a_cluster_without_clients_is_no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(has_clients=False)
    cluster.may_answer.set()

    async def sleep(seconds: float) -> None:
        raise AssertionError("it rests")

    monkeypatch.setattr(asyncio, "sleep", sleep)
    assert cast(list[Any], await paced_commands.agree(cluster, COMMANDS)) == COMMANDS


class Clock:
    """The loop of paced clients, in virtual time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:
        timer = (self.now + delay, callback)
        self.timers.append(timer)
        return Cancelling(self, timer)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        due = [timer for timer in self.timers if timer[0] <= self.now + 1e-9]
        self.timers = [timer for timer in self.timers if timer not in due]
        for _, callback in due:
            callback()


class Cancelling:
    def __init__(self, clock: Clock, timer: tuple[float, Callable[[], None]]) -> None:
        self.clock, self.timer = clock, timer

    def cancel(self) -> None:
        self.clock.timers.remove(self.timer)


class Clients:
    """Clients of a node that proposes for them. `serving`: others publish meanwhile."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.serving = True
        self.under_way: list[Callable[[Applied], None]] = []
        self.answered: list[str] = []
        loop = cast(asyncio.AbstractEventLoop, self.clock)
        self.commands = paced_commands.ClientCommands(loop, self._propose, lambda: self.serving)

    def _propose(self, command: Command, then: Callable[[Applied], None]) -> None:
        self.under_way.append(then)

    def ask(self, client: str) -> None:
        self.commands.propose(client, COMMANDS[0], lambda applied: self.answered.append(client))

    def agree(self, seconds: float = 0.0) -> None:
        """All that is under way is applied after so many seconds."""
        self.clock.wait(seconds)
        under_way, self.under_way = self.under_way, []
        for then in under_way:
            then(cast(Applied, None))

    def use_up(self, client: str) -> None:
        for _ in range(paced_commands.FREE):
            self.ask(client)
        assert len(self.under_way) == paced_commands.FREE
        self.agree()
        self.answered.clear()


def test_what_an_application_sets_up_is_not_paced() -> None:
    clients = Clients()
    clients.use_up("one")
    clients.use_up("two")
    assert not clients.clock.timers


def test_a_client_that_declares_in_a_loop_rests_longer_than_its_commands_take() -> None:
    clients = Clients()
    clients.use_up("bulk")
    clients.ask("bulk")
    assert len(clients.under_way) == 1  # The first one waits for nothing.
    clients.agree(0.02)
    assert clients.answered == ["bulk"]
    clients.ask("bulk")
    assert not clients.under_way
    clients.clock.wait(0.02 * paced_commands.CLIENTS_REST - 0.001)
    assert not clients.under_way
    clients.ask("other")
    assert len(clients.under_way) == 1  # A client that has declared little does not wait for the one that rests.
    clients.clock.wait(0.001)
    assert len(clients.under_way) == 2


def test_clients_that_wait_are_the_next_portion_together() -> None:
    clients = Clients()
    names = [f"client {number}" for number in range(paced_commands.CLIENTS_AT_ONCE + 3)]
    for name in names:
        clients.use_up(name)
    for name in names:
        clients.ask(name)
    assert len(clients.under_way) == 1
    clients.agree(60.0)
    clients.clock.wait(paced_commands.CLIENTS_REST_S_MAX)
    assert len(clients.under_way) == paced_commands.CLIENTS_AT_ONCE
    clients.agree(0.1)
    clients.clock.wait(0.1 * paced_commands.CLIENTS_REST)
    assert len(clients.under_way) == 2
    clients.agree()
    assert clients.answered == names


def test_while_nobody_publishes_nobody_is_paced() -> None:
    clients = Clients()
    clients.use_up("bulk")
    clients.serving = False
    clients.ask("bulk")
    clients.ask("bulk")
    assert len(clients.under_way) == 2 and not clients.clock.timers


def test_a_client_may_set_up_as_much_again_after_a_while() -> None:
    clients = Clients()
    clients.use_up("one")
    clients.clock.wait(2 * paced_commands.WINDOW_S)
    clients.use_up("one")
    clients.clock.wait(paced_commands.WINDOW_S)
    clients.ask("one")
    clients.ask("one")
    assert len(clients.under_way) == 1  # Commands of the last window count.


def test_a_node_that_stops_proposes_no_more() -> None:
    clients = Clients()
    clients.use_up("bulk")
    clients.ask("bulk")
    clients.agree(0.1)
    clients.ask("bulk")
    clients.commands.stop()
    clients.clock.wait(1.0)
    assert not clients.under_way


async def _pass() -> None:
    """One pass of the loop."""
    done = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(done.set_result, None)
    await done
