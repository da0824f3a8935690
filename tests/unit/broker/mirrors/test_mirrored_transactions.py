"""Transactions on a mirrored queue whose master changes, in good order or not."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.protocol import methods as m
from tests.support.machines import Client
from tests.support.mirrored_brokers import NAMES, Rings
from tests.unit.broker.remote.test_handover import PERSISTENT, fill, get, rest


@pytest.fixture
def rings() -> Any:
    rings = Rings()
    yield rings
    rings.mend()
    rings.finish()
    assert all(member.broker.still_out == 0 for member in rings.members.values())


def transacting(rings: Rings, at: str) -> Client:
    client = rings[at].client()
    client.call(m.TxSelect())
    return client


@pytest.mark.parametrize("at", NAMES)
def test_an_ack_from_before_a_hand_over_is_committed_after_it(rings: Rings, at: str) -> None:
    fill(rings, b"1", b"2", b"3")
    client = transacting(rings, at)
    assert [body for got in (get(client, False), get(client, False)) for body, _ in got] == [b"1", b"2"]
    client.send(m.BasicAck(1), m.BasicNack(2, False, True))
    rings.begin()
    rings.end()
    assert rings["b"].queue("q").unacked_count == 2
    assert client.call(m.TxCommit()) == m.TxCommitOk()
    assert rings["b"].queue("q").unacked_count == 0
    assert rest(rings) == [b"2", b"3"]


@pytest.mark.parametrize("at", NAMES)
def test_an_ack_from_before_a_hand_over_is_rolled_back_after_it(rings: Rings, at: str) -> None:
    fill(rings, b"1", b"2")
    client = transacting(rings, at)
    get(client, False)
    client.send(m.BasicAck(1))
    rings.begin()
    rings.end()
    client.call(m.TxRollback())
    assert rings["b"].queue("q").unacked_count == 1
    client.call(m.BasicRecover(True))
    assert rest(rings) == [b"1", b"2"]


@pytest.mark.parametrize("at", NAMES)
def test_a_commit_during_a_hand_over(rings: Rings, at: str) -> None:
    client = transacting(rings, at)
    client.publish("q", b"1", **PERSISTENT)
    rings.begin()
    client.send(m.TxCommit())
    assert not client.take()
    rings.end()
    assert client.methods() == [m.TxCommitOk()]
    assert rest(rings) == [b"1"]


@pytest.mark.parametrize("at", ["b", "c"])
def test_the_master_is_lost_between_ack_and_commit(rings: Rings, at: str) -> None:
    """Its unacknowledged messages come again, so this ack means nothing; the publishes are made."""
    fill(rings, b"1")
    client = transacting(rings, at)
    get(client, False)
    client.send(m.BasicAck(1))
    client.publish("q", b"2", **PERSISTENT)
    rings.lose("a")
    rings.run()
    assert client.call(m.TxCommit()) == m.TxCommitOk()
    assert rest(rings, at) == [b"1", b"2"]
