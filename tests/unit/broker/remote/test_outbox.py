"""Publishes in doubt are sent again under the same numbers, and are in their queue once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from leveret.broker.delivery.batch import Span
from leveret.broker.delivery.confirms import Confirms, Pending
from leveret.broker.delivery.publish_numbers import ENTRY
from leveret.broker.queue import dedup, ordered_queue
from leveret.broker.queue.queue import Queue
from leveret.broker.remote import outbox
from leveret.metadata.model import commands as c
from leveret.metadata.rules.partition_handling import PartitionHandling, Strategy
from leveret.protocol import methods as m
from leveret.protocol.tables import table_from_python
from leveret.sessions.amqp import transactions
from leveret.storage.format.queue_block import REDELIVERED
from tests.support.brokers import Cluster
from tests.support.machines import Client, publish
from tests.support.mirrored_brokers import NAMES, Rings
from tests.support.remote import client_with_queue, confirming, cut, cut_and_join


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster("a", "b", home="b")
    yield cluster
    for member in cluster.members.values():
        assert not member.broker.outboxes.busy and not member.broker.outboxes.open_bytes


def publisher_at_a(cluster: Cluster, **options: Any) -> Client:
    client = client_with_queue(cluster, **options)
    confirming(client)
    return client


def publisher(rings: Rings, at: str) -> Client:
    client = rings[at].client()
    client.call(m.ConfirmSelect())
    return client


def held(queue: Queue) -> list[tuple[bytes, bool]]:
    """The bodies that wait, and whether they are marked."""
    found = []
    for entry in queue.ready:
        assert isinstance(entry, Span)
        for at in range(entry.lo, entry.hi):
            found.append((entry.batch.contents[at][-2:-1], bool(entry.batch.kinds[at] & REDELIVERED)))
    return found


def acked(client: Client) -> int:
    """Up to which number all was acknowledged. Nothing was refused."""
    client.flush()
    last = 0
    for method in client.methods():
        assert isinstance(method, m.BasicAck), method
        last = max(last, method.delivery_tag)
    return last


def look(cluster: Cluster) -> None:
    """Time goes by."""
    for member in cluster.members.values():
        member.broker.now_ms += outbox.AGAIN_MS
        member.broker.outboxes.tick()
    cluster.run()


# -- Links -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arrived", [0, 1, 2, 3])
def test_after_a_lost_link_what_is_missing_is_taken_and_the_rest_is_passed_over(cluster: Cluster, arrived: int) -> None:
    client = publisher_at_a(cluster)
    cluster.hold("b", "a")
    cluster.hold("a", "b")
    for body in (b"1", b"2", b"3"):
        client.publish("q", body, delivery_mode=2)
    cluster.release("a", "b", arrived)
    cluster.run()
    cluster.held.clear()
    cut(cluster)
    assert client.take() == []
    client.publish("q", b"x", delivery_mode=2)  # There is nobody, and no spool.
    assert client.methods() == [m.BasicNack(4, False, False)]
    cluster.join("a", "b")
    client.publish("q", b"4", delivery_mode=2)
    assert acked(client) == 5
    bodies = [(body, number >= arrived) for number, body in enumerate((b"1", b"2", b"3"))]
    assert held(cluster["b"].queue("q")) == [*bodies, (b"4", False)]


def test_it_is_confirmed_only_when_it_is_safe(cluster: Cluster) -> None:
    client = publisher_at_a(cluster)
    cluster["b"].holds_disk = True
    client.publish("q", b"1", delivery_mode=2)
    cut_and_join(cluster)
    cluster.run()
    assert client.take() == [] and held(cluster["b"].queue("q")) == [(b"1", False)]
    cluster["b"].holds_disk = False
    cluster["b"].sync()
    cluster.run()
    assert acked(client) == 1


def test_what_comes_behind_a_hole_is_sent_again_in_order(cluster: Cluster) -> None:
    """The first is lost on its way, as if its node had refused to pass it on."""
    client = publisher_at_a(cluster)
    cluster.hold("a", "b")
    client.publish("q", b"1", delivery_mode=2)
    cluster.links["a", "b"].clear()
    client.publish("q", b"2", delivery_mode=2)
    client.publish("q", b"3", delivery_mode=2)
    home = cluster["b"].broker.owner_ends["a"]
    home.confirms.begin(1).refused = 2  # Token 1.
    cluster.release("a", "b")
    cluster.run()
    assert client.take() == [] and held(cluster["b"].queue("q")) == []
    look(cluster)
    assert acked(client) == 3
    assert [body for body, _ in held(cluster["b"].queue("q"))] == [b"1", b"2", b"3"]


# -- Queues that refuse ------------------------------------------------------------------------------------------------


REJECTING = {"x-max-length": 2, "x-overflow": "reject-publish"}


def at_a_full_queue(cluster: Cluster, **more: object) -> Client:
    """With room for one more."""
    client = publisher_at_a(cluster, arguments=table_from_python({**REJECTING, **more}))
    client.publish("q", b"0", delivery_mode=2)
    assert acked(client) == 1
    return client


def answers(client: Client, before: int = 0) -> list[tuple[int, bool]]:
    """Publishes that were answered, and whether they were taken. All up to `before` were answered earlier."""
    client.flush()
    found: dict[int, bool] = {}
    for method in client.methods():
        assert isinstance(method, m.BasicAck | m.BasicNack)
        numbers = range(before + 1 if method.multiple else method.delivery_tag, method.delivery_tag + 1)
        for number in numbers:
            found.setdefault(number, isinstance(method, m.BasicAck))
    return sorted(found.items())


def make_room(cluster: Cluster) -> None:
    cluster["b"].queue("q").purge()
    cluster.run()


def test_a_full_queue_refuses_one_by_one_and_takes_what_comes_behind(cluster: Cluster) -> None:
    client = at_a_full_queue(cluster)
    cluster.hold("b", "a")
    for body in b"1234":
        client.publish("q", bytes((body,)), delivery_mode=2)
    make_room(cluster)
    client.publish("q", b"5", delivery_mode=2)
    cluster.release("b", "a")
    cluster.run()
    assert answers(client, 1) == [(2, True), (3, False), (4, False), (5, False), (6, True)]
    assert held(cluster["b"].queue("q")) == [(b"5", False)], "nothing was sent twice"


@pytest.mark.parametrize("arrived", range(6))
def test_a_full_queue_gives_the_same_answers_after_a_lost_link(cluster: Cluster, arrived: int) -> None:
    """What it has is confirmed, and what it has refused is refused, though it took something that came later."""
    client = at_a_full_queue(cluster)
    cluster.hold("b", "a")
    cluster.hold("a", "b")
    for body in b"12345":
        client.publish("q", bytes((body,)), delivery_mode=2)
    for number in range(arrived):
        cluster.release("a", "b", 1)
        cluster.run()
        if number == 2:  # Two were refused, so that there is a gap in what it took.
            make_room(cluster)
    cluster.held.clear()
    cut_and_join(cluster)
    look(cluster)
    found, there = answers(client, 1), {body for body, _ in held(cluster["b"].queue("q"))}
    purged = {b"1"} if arrived > 2 else set()
    assert [number for number, _ in found] == [2, 3, 4, 5, 6]
    assert {b"%d" % (number - 1) for number, taken in found if taken} == (there - {b"0"}) | purged
    assert len(held(cluster["b"].queue("q"))) == len(there) == 2


def test_a_refusal_is_remembered_by_the_next_master() -> None:
    """It is in the block of what was taken behind it."""
    rings = Rings(table_from_python(REJECTING))
    client = publisher(rings, "c")
    rings.hold("a", "c")
    for body in b"123":
        client.publish("q", bytes((body,)), delivery_mode=2)
    rings["a"].queue("q").purge()
    client.publish("q", b"4", delivery_mode=2)
    assert held(rings["a"].queue("q")) == [(b"4", False)]
    rings.held.clear()
    rings.lose("a")
    rings.pass_time(20)
    for _ in range(5):
        look(rings)
    assert answers(client) == [(1, True), (2, True), (3, False), (4, True)]
    assert held(rings[rings.master].queue("q"))[-1][0] == b"4"


def test_who_was_told_by_a_spool_that_it_is_safe_is_not_refused(cluster: Cluster) -> None:
    client = at_a_full_queue(cluster)
    cluster["a"].broker.partition_handling = PartitionHandling(Strategy.IGNORE)
    cluster.hold("b", "a")
    for body in b"12":
        client.publish("q", bytes((body,)), delivery_mode=2)
    make_room(cluster)
    client.publish("q", b"3", delivery_mode=2)
    assert held(cluster["b"].queue("q")) == [(b"3", False)]
    cluster.held.clear()
    cut(cluster)
    cluster.wait_in_vain()
    assert acked(client) == 4
    cluster.join("a", "b")
    for _ in range(3):
        cluster.run()
        cluster.tick()
    assert [body for body, _ in held(cluster["b"].queue("q"))] == [b"3", b"2"]
    assert not cluster["a"].broker.spools.active


def test_what_is_remembered_of_refusals_is_bounded(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It decides no more than it can remember, until it hears that what it has refused has its answer."""
    monkeypatch.setattr(dedup, "WINDOW", 8)
    client = at_a_full_queue(cluster)
    client.publish("q", b"1", delivery_mode=2)
    assert acked(client) == 2
    cluster.hold("b", "a")
    for _ in range(20):
        client.publish("q", b"x", delivery_mode=2)
    (mark,) = cluster["b"].queue("q").durable_state.table.values()
    assert len(mark) == ENTRY.size + 1
    cluster.release("b", "a")
    for _ in range(5):
        look(cluster)
    assert answers(client, 2) == [(number, False) for number in range(3, 23)]
    make_room(cluster)
    client.publish("q", b"2", delivery_mode=2)
    assert acked(client) == 23
    (mark,) = cluster["b"].queue("q").durable_state.table.values()
    assert len(mark) == ENTRY.size


def test_what_is_not_persistent_costs_no_sync(cluster: Cluster) -> None:
    client = publisher_at_a(cluster)
    cluster["b"].holds_disk = True
    for _ in range(3):
        client.publish("q", b"x", delivery_mode=1)
    assert acked(client) == 3
    assert cluster["b"].queue("q").number == 0, "no block was made"
    cluster["b"].holds_disk = False
    client.publish("q", b"y", delivery_mode=2)
    assert acked(client) == 4
    ((name, entry),) = cluster["b"].queue("q").durable_state.table.items()
    assert name.startswith(b"producer:node ") and int.from_bytes(entry[:8], "big") == 4


def test_a_queue_that_is_deleted_meanwhile_confirms(cluster: Cluster) -> None:
    client = publisher_at_a(cluster)
    cluster.hold("a", "b")
    client.publish("q", b"1", delivery_mode=2)
    cluster.held.clear()
    cut(cluster)
    spec = cluster["b"].metadata.queues["/", "q"]
    cluster.apply(c.DeleteQueue("/", "q", spec.id))
    cluster.run()
    look(cluster)
    assert acked(client) == 1


def test_what_is_kept_is_bounded(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "QUEUE_BYTES_MAX", 1_000)
    client = publisher_at_a(cluster)
    cluster["b"].holds_disk = True
    queue = cluster["a"].broker.vhosts["/"].queues["q"]
    client.publish("q", bytes(600), delivery_mode=2)
    assert not queue.is_crowded()
    client.publish("q", bytes(600), delivery_mode=2)
    assert queue.is_crowded(), "whoever publishes has to wait"
    cluster["b"].holds_disk = False
    cluster["b"].sync()
    cluster.run()
    assert not queue.is_crowded() and acked(client) == 2


# -- In time -----------------------------------------------------------------------------------------------------------


def test_who_waits_too_long_is_refused() -> None:
    confirms = Confirms(lambda: None)
    late, early, new = confirms.begin(2), confirms.begin(1), confirms.begin(1)
    for pending in (late, early, new):
        pending.waiting = 1
    assert confirms.overdue(2) == 0
    last = confirms.begin(3)
    last.waiting = 1
    assert confirms.overdue(2) == 0
    early.on_safe()
    assert confirms.overdue(2) == 3, "those that were there at the first look, and are not safe"
    assert confirms.take() == [(2, True, 1), (3, False, 0), (4, False, 1)]
    late.on_safe()  # Nobody listens.
    new.on_safe()
    assert confirms.take() == [] and confirms.overdue(2) == 3
    assert confirms.take() == [(7, True, 1)]
    assert confirms.overdue(2) == 0 and not confirms.past


def test_a_disk_that_stalls_is_waited_for_so_long(cluster: Cluster) -> None:
    """That of the client's own node as well as that of the queue's home; and the answers of both come once."""
    client = publisher_at_a(cluster)
    cluster.home = "a"
    client.declare("own", durable=True)
    cluster["a"].holds_disk = cluster["b"].holds_disk = True
    client.publish("q", b"1", delivery_mode=2)
    client.publish("own", b"2", delivery_mode=2)
    cluster.wait_in_vain()
    assert client.methods() == [m.BasicNack(2, True, False)]
    for member in cluster.members.values():
        member.holds_disk = False
        member.sync()
    cluster.run()
    assert client.methods() == []
    client.publish("own", b"3", delivery_mode=2)
    assert client.methods() == [m.BasicAck(3, False)]


def test_while_an_alarm_is_on_clients_know_what_they_wait_for(cluster: Cluster) -> None:
    client = publisher_at_a(cluster)
    cluster["b"].holds_disk = True
    client.publish("q", b"1", delivery_mode=2)
    cluster["a"].broker.alarm = "disk"
    cluster.wait_in_vain()
    assert client.methods() == []
    cluster["b"].holds_disk = False
    cluster["b"].sync()
    cluster.run()
    assert client.methods() == [m.BasicAck(1, False)]


def transacting_at_a(cluster: Cluster) -> Client:
    client = client_with_queue(cluster)
    client.call(m.TxSelect())
    return client


def is_failed(client: Client) -> bool:
    (method,) = client.methods()
    assert isinstance(method, m.ChannelClose), method
    assert (method.reply_code, method.reply_text) == (406, "PRECONDITION_FAILED - partial tx completion")
    return True


@pytest.mark.parametrize("queue", ["q", "own"])
def test_a_commit_does_not_wait_for_ever(cluster: Cluster, queue: str) -> None:
    """Neither for another node's disk nor for its own; nothing is acknowledged, and the queue may have the publish."""
    client = transacting_at_a(cluster)
    cluster.home = "a"
    client.declare("own", durable=True)
    client.declare("source", durable=True)
    client.publish("source", b"0", delivery_mode=2)
    assert client.call(m.TxCommit()) == m.TxCommitOk()
    client.call(m.BasicGet(queue="source"))
    client.send(m.BasicAck(1, False))
    client.publish(queue, b"1", delivery_mode=2)
    cluster["a"].holds_disk = cluster["b"].holds_disk = True
    client.send(m.TxCommit())
    for _ in range(outbox.ANSWER_MS // 500):
        cluster.wait_in_vain(500)
        assert client.methods() == []
    cluster.wait_in_vain(1_000)
    assert is_failed(client)
    assert cluster["a"].queue("source").ready_count == 1
    for member in cluster.members.values():
        member.holds_disk = False
        member.sync()
    cluster.run()
    assert client.methods() == []
    assert held(cluster["b" if queue == "q" else "a"].queue(queue)) == [(b"1", False)]
    assert cluster["a"].broker.uncommitted_bytes == 0


def test_a_commit_whose_link_was_lost_ends_in_time(cluster: Cluster) -> None:
    client = transacting_at_a(cluster)
    cluster.hold("b", "a")
    client.publish("q", b"1", delivery_mode=2)
    client.send(m.TxCommit())
    cluster.held.clear()
    cut(cluster)
    assert client.methods() == []
    cluster.wait_in_vain()
    assert is_failed(client)


def test_a_commit_is_made_under_its_numbers_after_a_lost_link(cluster: Cluster) -> None:
    client = transacting_at_a(cluster)
    cluster.hold("b", "a")
    client.publish("q", b"1", delivery_mode=2)
    client.send(m.TxCommit())
    cluster.held.clear()
    cut_and_join(cluster)
    look(cluster)
    assert client.methods() == [m.TxCommitOk()]
    assert held(cluster["b"].queue("q")) == [(b"1", False)]


def test_a_commit_goes_on_as_long_as_its_parts_become_safe(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it may take longer than one publish would wait; what has not been sent is not late."""
    monkeypatch.setattr(transactions, "PART_BYTES", 1)
    monkeypatch.setattr(transactions, "UNSAFE_BYTES_MAX", 1)
    client = transacting_at_a(cluster)
    for number in range(5):
        client.publish("q", b"%d" % number, delivery_mode=2)
    cluster["b"].holds_disk = True
    client.send(m.TxCommit())
    for _ in range(5):
        assert client.methods() == []
        cluster.wait_in_vain(outbox.ANSWER_MS - 1_000)
        cluster["b"].holds_disk = False
        cluster["b"].sync()
        cluster["b"].holds_disk = True
        cluster.run()
    assert client.methods() == [m.TxCommitOk()]


def test_a_commit_where_there_are_spools(cluster: Cluster) -> None:
    client = transacting_at_a(cluster)
    cluster["a"].broker.partition_handling = PartitionHandling(Strategy.IGNORE)
    cluster["b"].holds_disk = True
    client.publish("q", b"1", delivery_mode=2)
    client.send(m.TxCommit())
    cluster.wait_in_vain()
    assert client.methods() == [m.TxCommitOk()]
    cluster["b"].holds_disk = False
    for _ in range(3):
        cluster["b"].sync()
        cluster.run()
        cluster.tick()
    assert held(cluster["b"].queue("q")) == [(b"1", False)]


def test_a_home_that_stalls_where_there_are_spools(cluster: Cluster) -> None:
    """This node's disk will do, and the queue knows what it has when it answers again."""
    client = publisher_at_a(cluster)
    cluster["a"].broker.partition_handling = PartitionHandling(Strategy.IGNORE)
    cluster["b"].holds_disk = True
    client.publish("q", b"1", delivery_mode=2)
    client.publish("q", b"2", delivery_mode=2)
    cluster.wait_in_vain()
    assert acked(client) == 2
    client.publish("q", b"3", delivery_mode=2)
    assert acked(client) == 3
    cluster["b"].holds_disk = False
    for _ in range(3):
        cluster["b"].sync()
        cluster.run()
        cluster.tick()
    assert held(cluster["b"].queue("q")) == [(b"1", False), (b"2", False), (b"3", False)]
    assert not cluster["a"].broker.spools.active


# -- Masters -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reached", [True, False])
def test_a_former_master_sends_again_what_its_own_clients_published(reached: bool) -> None:
    rings = Rings()
    client = publisher(rings, "a")
    client.publish("q", b"0", delivery_mode=2)
    assert acked(client) == 1
    for other in "bc":  # Blocks get there or not; that they did is not heard.
        rings.hold(other, "a")
        if not reached:
            rings.hold("a", other)
    client.publish("q", b"1", delivery_mode=2)
    client.publish("q", b"2", delivery_mode=2)
    rings.held.clear()
    rings.lose("a")
    rings.pass_time(20)
    assert rings.master in "bc" and client.take() == []
    rings.mend()
    for _ in range(10):
        rings.pass_time(5)
        look(rings)
    assert acked(client) == 3
    assert rings[rings.master].queue("q").ready_count == 3
    assert not any(member.broker.outboxes.busy for member in rings.members.values())


def test_a_master_that_dies_at_once_leaves_to_the_next_what_it_knew_of_the_epoch_before() -> None:
    """It made no block but the one with which it began."""
    rings = Rings()
    client = publisher(rings, "a")
    for other in "bc":  # Blocks get there; that they did is not heard.
        rings.hold(other, "a")
    client.publish("q", b"1", delivery_mode=2)
    client.publish("q", b"2", delivery_mode=2)
    rings.held.clear()
    rings.lose("a")
    rings.pass_time(20)
    second = rings.master
    assert second in "bc" and rings[second].queue("q").number == rings.mirror(second).member.tail.end
    rings.lose(second)
    rings.pass_time(20)
    (third,) = {"b", "c"} - {second}
    assert rings.mirror(third).queue is not None
    rings.mend()
    for _ in range(10):
        rings.pass_time(5)
        look(rings)
    assert acked(client) == 2
    assert rings[third].queue("q").ready_count == 2


def start_marks(rings: Rings, at: str) -> dict[bytes, int]:
    """What the last block says that it has of former epochs."""
    tail = rings.mirror(at).member.tail
    (block,) = tail.upto(tail.end, tail.end)
    return {key: ENTRY.unpack(value)[0] for key, value in block.marks.items()}


@pytest.mark.parametrize("count", [0, 2])
def test_a_master_whose_next_epoch_is_its_own_again_notes_the_one_before(count: int) -> None:
    """It was told of no view between the two. A queue that never had a message needs no mark."""
    rings = Rings()
    client, mirrors = publisher(rings, "a"), rings["a"].broker.mirrors
    for _ in range(count):
        client.publish("q", b"1", delivery_mode=2)
    spec = rings["a"].metadata.queues["/", "q"]
    assert spec.view is not None
    view = spec.view._replace(version=spec.view.version + 2, epoch=3)
    mirrors.on_view(replace(spec, view=view), born=False)
    queue = rings.mirror("a").queue
    assert queue is not None and queue.epoch == 3
    assert start_marks(rings, "a") == ({b"producer:epoch 1": 2} if count else {})


def test_a_client_of_a_third_node_is_confirmed_by_the_next_master() -> None:
    """Of what the lost master had passed on, and of what it had not."""
    rings = Rings()
    client = publisher(rings, "c")
    rings.hold("a", "c")
    client.publish("q", b"1", delivery_mode=2)  # It is in the ring.
    rings.hold("c", "a")
    client.publish("q", b"2", delivery_mode=2)  # It is not.
    rings.held.clear()
    rings.lose("a")
    rings.pass_time(20)
    assert acked(client) == 2
    assert [body for body, _ in held(rings[rings.master].queue("q"))] == [b"1", b"2"]


def test_a_queue_that_is_handed_over_is_not_in_doubt_about_its_own_clients() -> None:
    rings = Rings()
    client = publisher(rings, "a")
    client.feed(publish(1, "", "q", b"1", delivery_mode=2))
    assert rings["a"].broker.mirrors.hand_over(rings.mirror("a"), "b")
    rings.run()
    rings.pass_time(10)
    assert rings.master == "b" and acked(client) == 1
    assert held(rings["b"].queue("q")) == [(b"1", False)]


def test_a_master_without_the_majority_keeps_what_it_has_in_doubt() -> None:
    rings = Rings()
    for name in NAMES:
        rings[name].broker.partition_handling = PartitionHandling(Strategy.IGNORE)
    client = publisher(rings, "a")
    rings.hold("a", "b")
    rings.hold("a", "c")
    client.publish("q", b"1", delivery_mode=2)
    client.feed(publish(1, "", "q", b"2", delivery_mode=2))
    broker = rings["a"].broker
    broker.mirrors.on_majority(False)
    (spool,) = broker.spools.by_target.values()
    assert [(one.producer, one.number, one.first, one.last) for one in spool.borrowed] == [(b"epoch 1", 1, 1, 2)]
    assert not any(one[2] for one in rings.mirror("a").in_blocks), "the ring answers nobody"
    block = spool.take_block(0)
    assert block is not None and block.enqueued is not None
    awaiting, spool.awaiting = spool.awaiting, []
    for pending in awaiting:
        pending.on_safe()
    broker.tell_confirms()
    assert acked(client) == 2


def test_nobody_waits_for_a_queue_of_another_node_that_is_full_and_here_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its consumers hold what they have, so that it would stay full."""
    monkeypatch.setattr(ordered_queue, "CROWDED_AT", 2)
    rings = Rings()
    client, remote = publisher(rings, "b"), rings["b"].broker.vhosts["/"].queues["q"]
    client.call(m.BasicQos(prefetch_count=1))
    client.consume("q")
    for body in (b"1", b"2", b"3", b"4"):
        client.publish("q", body, delivery_mode=2)
    rings.lose("a")
    rings.pass_time(20)
    assert rings.master == "b"
    assert rings["b"].queue("q").is_crowded() and not remote.is_crowded()


def test_a_spool_without_messages_does_not_stand_before_its_queue() -> None:
    """A consumer waited for the next master so long that a spool was begun, and nobody published anything. Then this
    node became the master."""
    rings = Rings()
    for name in NAMES:
        rings[name].broker.partition_handling = PartitionHandling(Strategy.IGNORE)
    client = rings["b"].client()
    client.consume("q")
    rings.behind = set(NAMES)  # Nobody hears of the next view.
    rings.lose("a")
    broker = rings["b"].broker
    for _ in range(outbox.ANSWER_MS // 1_000 + 2):
        rings.tick()
    assert rings.number in broker.spools.by_target and not broker.spools.active
    rings.behind = {"a"}
    rings.pass_time(20)
    assert rings.master == "b"
    assert broker.vhosts["/"].queues["q"] is rings["b"].queue("q") is rings.mirror("b").queue
    assert not broker.spools.by_target[rings.number].fronts


def test_a_master_without_the_majority_is_out_of_reach_also_when_its_spool_takes_nothing() -> None:
    """The queue would take no publish of this size, so its spool does not. A publish of another size is spooled."""
    rings = Rings(table_from_python({"x-overflow": "reject-publish", "x-max-length-bytes": 100}))
    for name in NAMES:
        rings[name].broker.partition_handling = PartitionHandling(Strategy.IGNORE)
    client, broker, queue = publisher(rings, "a"), rings["a"].broker, rings["a"].queue("q")
    rings.lose("a")
    broker.mirrors.on_majority(False)
    client.publish("q", bytes(200), delivery_mode=2)
    assert broker.vhosts["/"].queues["q"] is not queue
    client.publish("q", b"2", delivery_mode=2)
    (spool,) = broker.spools.by_target.values()
    assert spool.count == 1
    nack, ack = client.methods()
    assert isinstance(nack, m.BasicNack) and isinstance(ack, m.BasicAck) and ack.delivery_tag == 2


def test_its_own_reign_knows_what_it_has() -> None:
    """The majority was away for a moment, and nobody else has led the queue."""
    rings = Rings()
    client = publisher(rings, "a")
    rings.hold("b", "a")
    rings.hold("c", "a")
    client.publish("q", b"1", delivery_mode=2)
    queue, mirror, broker = rings["a"].queue("q"), rings.mirror("a"), rings["a"].broker
    (sent,) = outbox.take_unconfirmed(broker, mirror, queue)
    rings.release("b", "a")
    rings.release("c", "a")
    rings.run()
    box = broker.outboxes.of(queue.spec.id)
    box.doubtful[sent] = None
    box.again()
    rings.run()
    assert acked(client) == 1 and held(queue) == [(b"1", False)]


def test_what_was_refused_is_not_in_doubt() -> None:
    told: list[Pending] = []
    pending = Pending(type("Told", (), {"on_complete": lambda self, one: told.append(one)})(), 1, 1)
    pending.waiting = 3
    pending.refuse(1)
    pending.refuse(2)
    pending.on_safe()
    assert told == [pending] and pending.refused == 1
