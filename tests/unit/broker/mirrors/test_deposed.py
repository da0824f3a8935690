"""Masters that are deposed while they hold what nobody else has: nothing of it is confirmed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from leveret.broker.delivery.batch import Span
from leveret.broker.remote.migrate import demote
from leveret.broker.remote.outbox import AGAIN_MS, SWEEP_MS
from leveret.broker.remote.remote_queue import RemoteQueue
from leveret.metadata.model import commands as c
from leveret.metadata.rules.partition_handling import PartitionHandling, Strategy
from leveret.protocol import methods as m
from tests.support.brokers import Member
from tests.support.machines import Client, publish
from tests.support.mirrored_brokers import Rings
from tests.support.mutating import Change
from tests.support.mutating import replace as replace_code

Scenario = Callable[[Rings], tuple[int, int]]


def publisher(rings: Rings, at: str) -> Client:
    client = rings[at].client()
    client.call(m.ConfirmSelect())
    return client


def test_what_is_in_no_block_is_refused() -> None:
    rings = Rings()
    client = publisher(rings, "a")
    queue = rings["a"].queue("q")
    client.feed(publish(1, "", "q", b"x", delivery_mode=2))
    assert queue.awaiting
    demote(queue, RemoteQueue(queue.spec, rings["a"].broker))
    rings["a"].broker.tell_confirms()
    client.flush()
    assert client.methods() == [m.BasicNack(1, False, False)]


def test_who_left_and_came_back_without_hearing_of_it_has_led_in_vain() -> None:
    """As happens when a node that was away is given a snapshot of what the others have agreed on."""
    rings = Rings()
    client = publisher(rings, "a")
    rings.lose("a")
    client.publish("q", b"x", delivery_mode=2)
    assert client.methods() == []
    spec = rings["a"].metadata.queues["/", "q"]
    assert spec.view is not None
    view = spec.view._replace(version=5, epoch=2, master="b")
    rings["a"].broker._on_view(replace(spec, node="b", view=view, joined={**spec.joined, "a": 4}))
    rings["a"].broker.tell_confirms()
    client.flush()
    assert client.methods() == []
    (sent,) = rings["a"].broker.outboxes.of(spec.id).open
    assert (sent.name, sent.first, len(sent.contents)) == (b"epoch 1", 1, 1)


# -- Nothing is confirmed by who leads no longer -----------------------------------------------------------------------


def pass_time(rings: Rings, times: int = 5) -> None:
    """Has mirrors and outboxes do what they do after a while."""
    for _ in range(times):
        rings.pass_time(5)
        for member in rings.members.values():
            member.broker.now_ms += AGAIN_MS
            member.broker.outboxes.tick()
        rings.run()


def acked(client: Client) -> int:
    """How many publishes were confirmed just now; none was refused."""
    answers = client.methods()
    assert all(isinstance(one, m.BasicAck) for one in answers), answers
    return len(answers)


def own_clients(rings: Rings) -> tuple[int, int]:
    """A client of the master publishes what gets to nobody, and the others elect another one. Gives how many publishes
    were confirmed, and how many messages the new master has."""
    client = publisher(rings, "a")
    for other in "bc":
        rings.hold("a", other)
    client.publish("q", b"1", delivery_mode=2)
    rings.held.clear()
    rings.lose("a")
    rings.pass_time(20)
    assert rings.master in "bc" and client.take() == []
    rings.mend()
    return _confirmed(rings, client)


def clients_of_others(rings: Rings) -> tuple[int, int]:
    """Likewise by way of another node, whose link to the master is there all the time."""
    client = publisher(rings, "c")
    rings.hold("a", "b")
    client.publish("q", b"1", delivery_mode=2)
    spec = rings["a"].metadata.queues["/", "q"]
    assert spec.view is not None
    view = spec.view._replace(version=spec.view.version + 1, epoch=2, master="b")
    rings.apply(c.ChangeView("/", "q", spec.id, view))
    rings.held.clear()
    rings.run()
    return _confirmed(rings, client)


def _confirmed(rings: Rings, client: Client) -> tuple[int, int]:
    pass_time(rings, 10)
    return acked(client), rings[rings.master].queue("q").ready_count


@pytest.mark.parametrize("scenario", [own_clients, clients_of_others])
def test_what_a_deposed_master_had_in_blocks_is_confirmed_by_the_next_one(scenario: Scenario) -> None:
    assert scenario(Rings()) == (1, 1)


@pytest.mark.parametrize(
    ("scenario", "change"),
    [
        pytest.param(
            own_clients,
            Change(
                "MirrorManager._stopped",
                "take_unconfirmed(self.broker, mirror, queue)",
                "[one.confirms._drop(one) or one.answer(0) for one in take_unconfirmed(self.broker, mirror, queue)]",
            ),
            id="a deposed master confirms what its own clients published",
        ),
        pytest.param(
            clients_of_others,
            Change("MirrorManager._stopped", "_doubt(awaiting)", "[pending.on_safe() for pending in awaiting]"),
            id="a deposed master confirms what clients of other nodes published",
        ),
    ],
)
def test_that_is_noticed(scenario: Scenario, change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_code(monkeypatch, "confirmed by who leads no longer", change)
    assert scenario(Rings()) == (1, 0)


# -- What was published first enters the next master's queue first -----------------------------------------------------


def bodies(rings: Rings, at: str = "") -> list[bytes]:
    """The messages of the queue, in their order."""
    spans = [entry for entry in rings[at or rings.master].queue("q").ready if isinstance(entry, Span)]
    return [span.batch.contents[at][-2:-1] for span in spans for at in range(span.lo, span.hi)]


def test_publishes_wait_for_what_a_former_master_has_in_doubt_if_the_queue_is_here_now() -> None:
    """A client of the new master has published by way of the old one, which does not know yet what becomes of its last
    block, and answers all else."""
    rings = Rings()
    client, spec = publisher(rings, "b"), rings["a"].metadata.queues["/", "q"]
    rings.hold("b", "a")
    client.publish("q", b"1", delivery_mode=2)
    assert spec.view is not None
    rings.behind = {"a"}
    rings.apply(c.ChangeView("/", "q", spec.id, spec.view._replace(version=2, epoch=2, master="b")))
    client.publish("q", b"2", delivery_mode=2)
    rings.release("b", "a")
    rings.behind = set()
    rings.run()
    client.publish("q", b"3", delivery_mode=2)
    pass_time(rings)
    assert bodies(rings) == [b"1", b"2", b"3"]
    assert acked(client) > 0 and not rings["b"].broker.outboxes.of(spec.id).open


def test_publishes_wait_for_what_a_former_master_sends_again_itself() -> None:
    """It is sent again under other numbers than what comes later. If the next master refuses it, because the first of
    it was given up, it is to be asked again before it gets anything else."""
    rings = Rings()
    impatient, client = publisher(rings, "a"), publisher(rings, "a")
    for other in "bc":
        rings.hold("a", other)
    impatient.publish("q", b"0", delivery_mode=2)
    sweep(rings["a"], 10)
    client.publish("q", b"1", delivery_mode=2)
    rings.held.clear()
    rings.lose("a")
    rings.pass_time(20)
    rings.behind.clear()
    rings.run()  # It hears who leads now, and has no link yet.
    sweep(rings["a"], 12)
    assert impatient.methods() == [m.BasicNack(1, False, False)] and client.methods() == []
    rings.mend()
    client.publish("q", b"2", delivery_mode=2)
    pass_time(rings)
    assert bodies(rings) == [b"1", b"2"]
    assert acked(client) > 0 and not rings["a"].broker.outboxes.of(rings.number).open


def test_publishes_that_wait_for_others_wait_for_the_next_master_if_this_one_is_lost() -> None:
    rings = Rings()
    client, broker = publisher(rings, "a"), rings["a"].broker
    for other in "bc":
        rings.hold("a", other)
    client.publish("q", b"1", delivery_mode=2)
    rings.held.clear()
    rings.lose("a")
    rings.pass_time(20)
    new, third = rings.master, ({"b", "c"} - {rings.master}).pop()
    rings.hold(new, "a")
    rings.mend()
    client.publish("q", b"2", delivery_mode=2)
    remote = broker.vhosts["/"].queues["q"]
    assert isinstance(remote, RemoteQueue) and len(remote.parked or []) == 1 and remote not in broker.suspended
    rings.close(new, "a")
    assert len(remote.parked or []) == 1 and remote in broker.suspended
    rings.held.clear()
    rings.lose(new)
    rings.pass_time(20)
    pass_time(rings)
    found = next(name for name in ("a", third) if rings[name].broker.mirrors.queue_of(rings.number) is not None)
    assert bodies(rings, found) == [b"1", b"2"]
    assert acked(client) > 0 and not broker.outboxes.of(rings.number).open


def test_publishes_that_wait_for_others_follow_them_into_a_spool() -> None:
    """Else they would wait for good: what they waited for is never answered here."""
    rings = Rings()
    client, broker = publisher(rings, "a"), rings["a"].broker
    broker.partition_handling = PartitionHandling(Strategy.IGNORE)
    for other in "bc":
        rings.hold("a", other)
    client.publish("q", b"1", delivery_mode=2)
    rings.held.clear()
    rings.lose("a")
    rings.pass_time(20)
    rings.hold(rings.master, "a")
    rings.mend()
    client.publish("q", b"2", delivery_mode=2)
    remote = broker.vhosts["/"].queues["q"]
    assert isinstance(remote, RemoteQueue) and len(remote.parked or []) == 1
    remote.answer_publishers()
    assert remote.parked is None and remote.spool is not None and remote.spool.count == 2
    rings.held.clear()
    rings.run()
    pass_time(rings)
    assert bodies(rings) == [b"1", b"2"]


def sweep(member: Member, times: int) -> None:
    """Has the node look for clients that wait too long."""
    for _ in range(times):
        member.broker.now_ms += SWEEP_MS
        member.broker.outboxes.tick()
        member.turn()
