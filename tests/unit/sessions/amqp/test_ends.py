"""Connections and channels that have ended are freed at once, without the garbage collector.

It comes late to what has lived for long: clients that connect anew every hour would fill the memory with former
connections.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from leveret.protocol import methods as m
from tests.support.machines import World, publish


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    while gc.collect():  # Finalizers of what earlier tests left may leave something in turn.
        pass
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)  # A failure shows what was left.
    try:
        yield world
        gc.collect()
        assert gc.garbage == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def use(world: World, confirms: bool) -> None:
    client = world.client()
    client.declare("q", durable=True)
    if confirms:
        client.call(m.ConfirmSelect())
    client.feed(publish(1, "", "q", b"a message"))
    client.send(m.BasicConsume(queue="q", consumer_tag="c"))
    client.take()
    del world.clients[client.connection.output]
    client.lose()
    client.connection.leave_alone()


@pytest.mark.parametrize("confirms", [False, True])
def test_a_lost_connection(world: World, confirms: bool) -> None:
    for _ in range(3):
        use(world, confirms)


def test_channels(world: World) -> None:
    client = world.client()
    for number in (2, 3, 4):
        client.call(m.ChannelOpen(), number)
        client.call(m.ConfirmSelect(), number)
        client.call(m.ChannelClose(200, "", 0, 0), number)
        client.take()
