"""What a node keeps for queues that it cannot reach: clients are at a, the queue is at b."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from leveret.base.json_values import Json
from leveret.broker.remote import peer_frames as w
from leveret.broker.remote import spool_registry as spools
from leveret.broker.remote.spool_registry import Figures
from leveret.broker.remote.store_and_forward import SPOOL, Spool
from leveret.links import frame_types
from leveret.metadata.model import commands as c
from leveret.metadata.model.view import View
from leveret.metadata.rules.partition_handling import PartitionHandling, Strategy
from leveret.protocol import methods as m
from leveret.protocol.tables import Field
from leveret.storage.format.queue_block import KEPT, PERSISTENT, REDELIVERED
from tests.support.brokers import Cluster
from tests.support.machines import Client, publish
from tests.support.remote import client_with_queue, confirming, remote_queue

IGNORE = PartitionHandling(Strategy.IGNORE)
AUTOHEAL = PartitionHandling(Strategy.AUTOHEAL)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster("a", "b", home="b")
    set_handling(cluster, IGNORE)
    yield cluster
    cluster.held.clear()
    for member in cluster.members.values():
        member.crowded = member.holds_disk = member.holds_loads = False
    if ("a", "b") not in cluster.links:
        cluster.join("a", "b")
    cluster.run()
    cluster.finish()
    for member in cluster.members.values():
        assert not member.broker.spools.active and not member.broker.spools.content_bytes


def set_handling(cluster: Cluster, handling: PartitionHandling) -> None:
    for member in cluster.members.values():
        member.broker.partition_handling = handling


def cut(cluster: Cluster) -> None:
    cluster.close("a", "b")
    cluster.run()


def join(cluster: Cluster) -> None:
    cluster.join("a", "b")
    cluster.run()


def publisher_at_a(cluster: Cluster, **options: Any) -> Client:
    client = client_with_queue(cluster, **options)
    confirming(client)
    return client


def send(client: Client, *bodies: bytes, **properties: Any) -> None:
    client.feed(b"".join(publish(1, "", "q", body, client.frame_max, **properties) for body in bodies))
    client.world.turn()


def confirmed(client: Client) -> list[tuple[str, int]]:
    """What came: ack or nack, and up to which number."""
    answers = []
    for method in client.methods():
        assert isinstance(method, m.BasicAck | m.BasicNack)
        answers.append(("ack" if isinstance(method, m.BasicAck) else "nack", method.delivery_tag))
    return answers


def waiting(cluster: Cluster) -> list[bytes]:
    """The bodies in the queue, at its home."""
    queue = cluster["b"].queue("q")
    found = []
    for entry in queue.ready:
        found += [content[-2:-1] for content in entry.batch.contents[entry.lo : entry.hi]]  # type: ignore[union-attr]
    return found


def kinds(cluster: Cluster) -> list[int]:
    queue = cluster["b"].queue("q")
    return [kind for entry in queue.ready for kind in entry.batch.kinds[entry.lo : entry.hi]]  # type: ignore[union-attr]


def queue_kinds(cluster: Cluster) -> list[int]:
    """Of the publishes that came over the link."""
    found: list[int] = []
    for sender, receiver, kind, payload in cluster.frames:
        if (sender, receiver, kind) == ("a", "b", frame_types.PRODUCE):
            at = 8
            while at < len(payload):
                _, at = w.unpack_origin(payload, at + w.BUNDLE.size)
                messages, at = w.unpack_run(payload, at)
                found += messages.kinds
    return found


def figures(cluster: Cluster) -> Figures:
    (only,) = cluster["a"].broker.spools.figures()
    return only


def spool(cluster: Cluster) -> Spool:
    (only,) = cluster["a"].broker.spools.by_target.values()
    return only


# -- Keeping -------------------------------------------------------------------------------------------------------


def test_kept_confirmed_and_sent_on_in_order(cluster: Cluster) -> None:
    client = publisher_at_a(cluster)
    send(client, b"1")
    cut(cluster)
    client.take()
    send(client, b"2", b"3", delivery_mode=2)
    send(client, b"4", delivery_mode=2)
    assert confirmed(client) == [("ack", 3), ("ack", 4)]
    assert figures(cluster)[:6] == ("q", "/", "b", "collecting", "b cannot be reached", 3)
    join(cluster)
    send(client, b"5", delivery_mode=2)
    assert waiting(cluster) == [b"1", b"2", b"3", b"4", b"5"]
    assert figures(cluster).state == "empty" and figures(cluster).sent == 3
    assert remote_queue(cluster).spool is None


def test_a_confirm_waits_for_the_sync_and_nothing_is_sent_before_it(cluster: Cluster) -> None:
    client = publisher_at_a(cluster)
    cut(cluster)
    cluster["a"].holds_disk = True
    send(client, b"1", delivery_mode=2)
    assert confirmed(client) == []
    join(cluster)
    cluster.tick()
    assert waiting(cluster) == []
    cluster["a"].sync()
    cluster.run()
    assert confirmed(client) == [("ack", 1)]
    cluster["a"].holds_disk = False
    cluster.run()
    assert waiting(cluster) == [b"1"]


def test_what_is_not_persistent_is_kept_on_disk_and_is_not_persistent_in_its_queue(cluster: Cluster) -> None:
    client = publisher_at_a(cluster)
    cut(cluster)
    send(client, b"1", delivery_mode=1)
    send(client, b"2", delivery_mode=2, expiration="100000")
    send(client, b"3")
    assert len(cluster["a"].log.queues[SPOOL | remote_queue(cluster).spec.id]) == 3
    join(cluster)
    assert waiting(cluster) == [b"1", b"2", b"3"]
    assert [kind & PERSISTENT for kind in kinds(cluster)] == [0, PERSISTENT, 0]
    client.take()


@pytest.mark.parametrize("options", [{"durable": False}, {"exclusive": True}])
def test_queues_that_may_not_outlive_the_partition_have_none(cluster: Cluster, options: dict[str, Any]) -> None:
    client = publisher_at_a(cluster, **options)
    cut(cluster)
    send(client, b"1")
    assert confirmed(client) == [("nack", 1)]
    assert not cluster["a"].broker.spools.by_target


def test_other_strategies_refuse(cluster: Cluster) -> None:
    set_handling(cluster, PartitionHandling())
    client = publisher_at_a(cluster)
    cut(cluster)
    send(client, b"1")
    assert confirmed(client) == [("nack", 1)]


@pytest.mark.parametrize("arrives", [True, False])
def test_what_was_under_way_is_kept_with_its_numbers(cluster: Cluster, arrives: bool) -> None:
    client = publisher_at_a(cluster)
    send(client, b"0", delivery_mode=2)
    assert confirmed(client) == [("ack", 1)]
    cluster.hold("b", "a") if arrives else cluster.hold("a", "b")
    send(client, b"1", delivery_mode=2)
    send(client, b"2", delivery_mode=2)
    cut(cluster)
    assert confirmed(client) == [("ack", 3)]
    assert waiting(cluster) == ([b"0", b"1", b"2"] if arrives else [b"0"])
    send(client, b"3", delivery_mode=2)
    assert confirmed(client) == [("ack", 4)]
    cluster.held.clear()
    join(cluster)
    assert waiting(cluster) == [b"0", b"1", b"2", b"3"]
    again = [0, 0, 0, 0] if arrives else [0, REDELIVERED, REDELIVERED, 0]
    assert [kind & REDELIVERED for kind in kinds(cluster)] == again
    assert not spool(cluster).borrowed
    assert not [key for key in spool(cluster).durable_state.table if key.startswith(b"borrowed")]


def test_what_has_other_numbers_is_sent_when_all_before_it_is_answered(cluster: Cluster) -> None:
    """The queue may refuse what comes first, and could not tell by the numbers that it lacks it."""
    client = publisher_at_a(cluster)
    cluster.hold("a", "b")
    send(client, b"1", delivery_mode=2)
    cut(cluster)
    send(client, b"2", delivery_mode=2)
    cluster.held.clear()
    cluster.hold("b", "a")
    join(cluster)
    assert waiting(cluster) == [b"1"]
    cluster.release("b", "a")
    assert waiting(cluster) == [b"1", b"2"]


def test_what_was_under_way_and_is_kept_outlives_the_process(cluster: Cluster) -> None:
    client = publisher_at_a(cluster)
    cluster.hold("b", "a")
    send(client, b"1", b"2", delivery_mode=2)
    cluster.release("b", "a", 0)
    cut(cluster)
    send(client, b"3", delivery_mode=2)
    assert confirmed(client) == [("ack", 2), ("ack", 3)]
    before = spool(cluster)
    again = Spool(before.spools, remote_queue(cluster).spec)
    again.durable_state.restore(dict(before.durable_state.table))
    again.ready_count = 3
    again.begin()
    assert list(again.borrowed) == list(before.borrowed) and len(again.borrowed) == 1
    assert (again.borrowed[0].first, again.borrowed[0].last, again.borrowed[0].number) == (1, 2, 1)
    cluster.held.clear()
    join(cluster)
    assert waiting(cluster) == [b"1", b"2", b"3"]


def test_strategy_changed_meanwhile(cluster: Cluster) -> None:
    """What is there is sent on; nothing more is kept."""
    client = publisher_at_a(cluster)
    cut(cluster)
    send(client, b"1", delivery_mode=2)
    set_handling(cluster, PartitionHandling())
    send(client, b"2", delivery_mode=2)
    assert confirmed(client) == [("ack", 1), ("nack", 2)]
    join(cluster)
    assert waiting(cluster) == [b"1"]


def test_no_room(cluster: Cluster) -> None:
    client = publisher_at_a(cluster)
    spools = cluster["a"].broker.spools
    spools.content_bytes_max = 300
    cut(cluster)
    for _ in range(9):
        send(client, b"x" * 20, delivery_mode=2)
    answers = [answer for answer, _ in confirmed(client)]
    assert answers == ["ack"] * answers.count("ack") + ["nack"] * answers.count("nack")
    assert "ack" in answers and "nack" in answers and spools.is_full
    assert [text for _, level, text in cluster["a"].notes if level == "error"] == [
        f"spools are full: {spools.content_bytes} of 300 bytes; publishes for queues that cannot be reached are refused"
    ]
    assert figures(cluster).refused == answers.count("nack")
    join(cluster)
    assert not spools.is_full and len(waiting(cluster)) == answers.count("ack")


# -- Sending on ----------------------------------------------------------------------------------------------------


def test_link_lost_before_the_home_says_that_it_is_safe(cluster: Cluster) -> None:
    """It has taken them. They are sent again, and passed over."""
    client = publisher_at_a(cluster)
    cut(cluster)
    send(client, b"1", b"2", delivery_mode=2)
    cluster.hold("b", "a")
    join(cluster)
    assert waiting(cluster) == [b"1", b"2"] and spool(cluster).count == 2
    cut(cluster)
    send(client, b"3", delivery_mode=2)
    cluster.held.clear()
    join(cluster)
    cluster.tick()
    assert waiting(cluster) == [b"1", b"2", b"3"] and spool(cluster).count == 0
    client.take()


def test_link_lost_before_the_home_has_got_them(cluster: Cluster) -> None:
    client = publisher_at_a(cluster)
    cut(cluster)
    send(client, b"1", b"2", delivery_mode=2)
    cluster.hold("a", "b")
    join(cluster)
    cut(cluster)
    assert waiting(cluster) == [] and spool(cluster).count == 2
    cluster.held.clear()
    send(client, b"3", delivery_mode=2)
    join(cluster)
    cluster.tick()
    assert waiting(cluster) == [b"1", b"2", b"3"]
    # For all that is known here, the home may have shown them to somebody, and lost them before they were safe.
    assert kinds(cluster) == [PERSISTENT | REDELIVERED, PERSISTENT | REDELIVERED, PERSISTENT]
    client.take()


def test_a_turn_sends_some_and_the_next_one_more(cluster: Cluster, monkeypatch: Any) -> None:
    """Of several spools, none of which waits until another is empty."""
    monkeypatch.setattr(spools, "BATCHES_AT_ONCE", 4)
    client = publisher_at_a(cluster)
    names = ("q", "r", "s")
    for name in names[1:]:
        cluster.apply(c.DeclareQueue("/", name, node="b"))
    cut(cluster)
    for number in range(10):
        for name in names:
            client.feed(publish(1, "", name, b"%d" % number, client.frame_max, delivery_mode=2))
            client.world.turn()
    broker = cluster["a"].broker
    broker.spools.batches_left = 4
    flown: list[dict[str, int]] = []
    on_turn = broker.spools.on_turn

    def watched() -> None:
        flown.append({one.spec.name: one.sent + one.under_way_count for one in broker.spools.by_target.values()})
        on_turn()

    monkeypatch.setattr(broker.spools, "on_turn", watched)
    join(cluster)
    assert [cluster["b"].queue(name).ready_count for name in names] == [10, 10, 10]
    totals = [sum(one.values()) for one in flown]
    assert max(after - before for before, after in zip([0, *totals], totals, strict=False)) == 4
    third = next(one for one in flown if sum(one.values()) == 12)
    assert sorted(third.values()) == [4, 4, 4]
    client.take()


def test_publishes_do_not_overtake_what_is_being_sent(cluster: Cluster) -> None:
    client = publisher_at_a(cluster)
    cut(cluster)
    send(client, b"1", delivery_mode=2)
    cluster.hold("a", "b")
    join(cluster)
    send(client, b"2", delivery_mode=2)
    assert confirmed(client) == [("ack", 1), ("ack", 2)]  # By the spool: nobody knows yet whether the home takes any.
    cluster.release("a", "b")
    assert waiting(cluster) == [b"1", b"2"]


def join_slowly(cluster: Cluster) -> None:
    """The home's disk stands still: what is persistent is not safe yet, and the rest is."""
    cluster["b"].holds_disk = True
    join(cluster)


def test_the_last_ones_make_publishes_wait(cluster: Cluster) -> None:
    client = publisher_at_a(cluster)
    cut(cluster)
    send(client, b"1", delivery_mode=2)
    send(client, b"2", delivery_mode=1)  # Of another kind: another flight.
    client.take()
    join_slowly(cluster)
    assert spool(cluster).flows and spool(cluster).count == 1
    send(client, b"3", delivery_mode=2)
    assert confirmed(client) == [] and remote_queue(cluster).is_crowded()
    cluster["b"].holds_disk = False
    cluster.run()
    assert confirmed(client) == [("ack", 3)] and waiting(cluster) == [b"1", b"2", b"3"]
    assert not remote_queue(cluster).is_crowded()


def test_publishes_that_waited_for_the_last_ones_are_kept_if_the_link_breaks(cluster: Cluster) -> None:
    client = publisher_at_a(cluster)
    cut(cluster)
    send(client, b"1", delivery_mode=2)
    send(client, b"2", delivery_mode=1)
    client.take()
    join_slowly(cluster)
    send(client, b"3", delivery_mode=2)
    cut(cluster)
    assert confirmed(client) == [("ack", 3)]
    cluster["b"].holds_disk = False
    join(cluster)
    cluster.tick()
    assert waiting(cluster) == [b"1", b"2", b"3"]


def test_as_long_as_more_is_left_each_publish_waits_for_a_flight(cluster: Cluster, monkeypatch: Any) -> None:
    monkeypatch.setattr("leveret.broker.remote.store_and_forward.HOLD_BYTES", 0)
    client = publisher_at_a(cluster)
    cut(cluster)
    send(client, b"1", delivery_mode=2)
    send(client, b"2", delivery_mode=1)
    client.take()
    join_slowly(cluster)
    send(client, b"3", delivery_mode=2)
    assert confirmed(client) == [("ack", 3)] and remote_queue(cluster).is_crowded()
    cluster["b"].holds_disk = False
    cluster.run()
    assert waiting(cluster) == [b"1", b"2", b"3"] and not remote_queue(cluster).is_crowded()


def limited(cluster: Cluster, overflow: str, **more: Json) -> Client:
    """The queue has a limit of two, and one message; the link is cut."""
    client = publisher_at_a(cluster)
    limit: dict[str, Json] = {"max-length": 2, "overflow": overflow, **more}
    cluster.apply(c.SetPolicy("/", "limit", "q", "queues", 0, limit))
    send(client, b"0", delivery_mode=2)
    cut(cluster)
    client.take()
    return client


def test_a_full_queue_that_rejects_takes_what_was_confirmed_and_nothing_more(cluster: Cluster) -> None:
    client = limited(cluster, "reject-publish")
    send(client, b"1", b"2", b"3", delivery_mode=2)
    cluster.run()
    assert sorted(confirmed(client)) == [("ack", 3), ("nack", 4)], "a spool holds no more than its queue would"
    assert figures(cluster).refused == 1
    join(cluster)
    assert waiting(cluster) == [b"0", b"1", b"2"] and figures(cluster).state == "empty"
    assert kinds(cluster) == [PERSISTENT] * 3
    send(client, b"4", delivery_mode=2)
    cluster.run()
    assert confirmed(client) == [("nack", 5)]
    assert cluster["b"].queue("q").purge() == 3
    send(client, b"5", delivery_mode=2)
    cluster.run()
    assert confirmed(client) == [("ack", 6)] and waiting(cluster) == [b"5"]


def test_a_full_spool_sends_dead_letters_as_its_queue_would(cluster: Cluster) -> None:
    client = limited(cluster, "reject-publish-dlx", **{"dead-letter-exchange": "", "dead-letter-routing-key": "dead"})
    cluster.home = "a"
    cluster["a"].client().declare("dead")
    send(client, b"1", b"2", b"3", delivery_mode=2)
    cluster.run()
    assert sorted(confirmed(client)) == [("ack", 3), ("nack", 4)]
    assert cluster["a"].queue("dead").ready_count == 1
    join(cluster)
    cluster.tick()
    assert waiting(cluster) == [b"0", b"1", b"2"], "what was confirmed is in its queue"
    assert cluster["a"].queue("dead").ready_count == 1, "and is not with the dead as well"


def test_a_limit_in_bytes(cluster: Cluster) -> None:
    """What comes with a body counts as well: about twenty bytes here."""
    client = publisher_at_a(cluster)
    limit: dict[str, Json] = {"max-length-bytes": 150, "overflow": "reject-publish"}
    cluster.apply(c.SetPolicy("/", "limit", "q", "queues", 0, limit))
    cut(cluster)
    send(client, bytes(40), bytes(40), bytes(40), delivery_mode=2)
    cluster.run()
    assert sorted(confirmed(client)) == [("ack", 2), ("nack", 3)]
    join(cluster)
    assert cluster["b"].queue("q").ready_count == 2


@dataclass
class Stored:
    """What the log has of a queue."""

    count: int


def test_a_spool_may_begin_before_those_of_before_the_start_are_taken_up(cluster: Cluster) -> None:
    """By a dead letter of a queue of this node, while that is catching up."""
    client = publisher_at_a(cluster)
    cut(cluster)
    send(client, b"1", delivery_mode=2)
    client.take()
    begun, spools = spool(cluster), cluster["a"].broker.spools
    assert spools.open({SPOOL | begun.target: Stored(1)}) == {SPOOL | begun.target} and spool(cluster) is begun
    send(client, b"2", delivery_mode=2)
    client.take()
    join(cluster)
    assert waiting(cluster) == [b"1", b"2"]


def test_queue_deleted_meanwhile(cluster: Cluster) -> None:
    client = publisher_at_a(cluster)
    cut(cluster)
    send(client, b"1", delivery_mode=2)
    number = remote_queue(cluster).spec.id
    cluster.apply(c.DeleteQueue("/", "q", number))
    assert cluster["a"].broker.spools.dropped == 1 and not cluster["a"].log.queues.get(SPOOL | number)
    assert "1 messages kept for queue 'q' in vhost '/' are dropped: it was deleted" in [
        text for _, _, text in cluster["a"].notes
    ]
    client.take()
    cluster["b"].client().declare("q", durable=True)  # The same name, another queue.
    join(cluster)
    cluster.tick()
    assert waiting(cluster) == []


def test_queue_of_another_node_by_then(cluster: Cluster) -> None:
    """It has come to this very node: what is kept enters here."""
    client = publisher_at_a(cluster)
    cut(cluster)
    send(client, b"1", b"2", delivery_mode=2)
    spec = remote_queue(cluster).spec
    cluster.apply(c.NodeStarted("a", run="run"))
    cluster.apply(c.MoveQueue("/", "q", spec.id, "b", "a", "run"))
    cluster.tick()
    queue = cluster["a"].queue("q")
    assert queue.ready_count == 2 and figures(cluster).state == "empty"
    send(client, b"3", delivery_mode=2)
    assert queue.ready_count == 3
    client.take()


def test_a_queue_that_came_here_is_not_reached_by_others_before_what_is_kept(cluster: Cluster) -> None:
    client = publisher_at_a(cluster)
    cut(cluster)
    send(client, b"1", b"2", delivery_mode=2)
    client.take()
    spec = remote_queue(cluster).spec
    cluster["a"].holds_disk = True
    cluster.apply(c.NodeStarted("a", run="run"))
    cluster.apply(c.MoveQueue("/", "q", spec.id, "b", "a", "run"))
    assert remote_queue(cluster).successor is cluster["a"].broker.queues_by_id[spec.id]
    send(client, b"3", delivery_mode=2)
    assert confirmed(client) == []
    cluster["a"].holds_disk = False
    cluster.run()
    assert confirmed(client) == [("ack", 3)]
    send(client, b"4", delivery_mode=2)
    queue = cluster["a"].queue("q")
    contents = [content for entry in queue.ready for content in entry.batch.contents[entry.lo : entry.hi]]  # type: ignore[union-attr]
    assert [content[-2:-1] for content in contents] == [b"1", b"2", b"3", b"4"]
    client.take()


def test_only_the_log_has_them(cluster: Cluster) -> None:
    """Memory has forgotten what was kept; it is read back, in pieces."""
    for member in cluster.members.values():
        member.broker.content_bytes_max = 0
    client = publisher_at_a(cluster)
    cut(cluster)
    body = b"x" * 100_000
    for number in range(30):
        send(client, body, delivery_mode=1 if number % 10 > 6 else 2)
    assert cluster["a"].broker.content_bytes < 10 * len(body)
    client.take()
    join(cluster)
    cluster.tick()
    assert cluster["b"].queue("q").ready_count == 30 and figures(cluster).sent == 30
    assert sum(queue_kinds(cluster)) == 30 * KEPT + 21 * PERSISTENT


def test_what_came_over_a_link_is_not_kept(cluster: Cluster) -> None:
    """By a node that is not the queue's home any more. As soon as it were again, what follows would overtake it."""
    three = Cluster("a", "b", "c", home="a")
    set_handling(three, IGNORE)
    client = three["c"].client()
    client.declare("q", durable=True)
    confirming(client)
    spec = three["a"].queue("q").spec
    three.behind = {"c"}
    three.apply(c.NodeStarted("b", run="run"))
    three.apply(c.MoveQueue("/", "q", spec.id, "a", "b", "run"))
    three.close("a", "b")
    three.run()
    send(client, b"1", delivery_mode=2)
    assert confirmed(client) == []
    assert not three["a"].broker.spools.by_target and not three["c"].broker.spools.by_target
    three.behind.clear()
    three.join("a", "b")
    three["c"].broker.now_ms += 1_000
    three["c"].broker.outboxes.tick()
    three.run()
    assert confirmed(client) == [("ack", 1)]
    three.finish()


# -- Healing -------------------------------------------------------------------------------------------------------


def test_autoheal_drops_what_has_expired(cluster: Cluster) -> None:
    set_handling(cluster, AUTOHEAL)
    client = publisher_at_a(cluster)
    cut(cluster)
    send(client, b"1", expiration="1000")
    send(client, b"2", expiration="5000")
    send(client, b"3")
    for member in cluster.members.values():
        member.broker.wall_ms += 2_000
    send(client, b"4", expiration="1000")
    join(cluster)
    assert waiting(cluster) == [b"2", b"3", b"4"]
    assert figures(cluster).expired == 1 and figures(cluster).sent == 3
    client.take()


def test_autoheal_goes_by_the_time_to_live_of_the_queue(cluster: Cluster) -> None:
    set_handling(cluster, AUTOHEAL)
    client = publisher_at_a(cluster)
    cluster.apply(c.SetPolicy("/", "ttl", "q", "queues", 0, {"message-ttl": 1_000}))
    cut(cluster)
    send(client, b"1", b"2")
    for member in cluster.members.values():
        member.broker.wall_ms += 2_000
    send(client, b"3")
    join(cluster)
    assert waiting(cluster) == [b"3"] and figures(cluster).expired == 2
    client.take()


def test_autoheal_has_the_queue_send_dead_letters(cluster: Cluster) -> None:
    """They neither wait in the queue, nor push out what does."""
    set_handling(cluster, AUTOHEAL)
    client = publisher_at_a(cluster)
    rules: dict[str, Json] = {
        "message-ttl": 1_000, "max-length": 1, "dead-letter-exchange": "", "dead-letter-routing-key": "dead"
    }  # fmt: skip
    cluster.apply(c.SetPolicy("/", "rules", "^q$", "queues", 0, rules))
    cluster["a"].client().declare("dead")
    cut(cluster)
    send(client, b"1", b"2", delivery_mode=2)
    for member in cluster.members.values():
        member.broker.wall_ms += 2_000
    at_home = cluster["b"].client()
    at_home.feed(publish(1, "", "q", b"0", at_home.frame_max))
    send(client, b"3", delivery_mode=1, expiration="600")
    for member in cluster.members.values():
        member.broker.wall_ms += 700
    client.take()
    join(cluster)
    assert waiting(cluster) == [b"0"] and figures(cluster)[5:] == (0, 0, 0, 0, 3, 0, 0)
    dead = cluster["b"].queue("dead")
    contents = [content for entry in dead.ready for content in entry.batch.contents[entry.lo : entry.hi]]  # type: ignore[union-attr]
    assert [content[-2:-1] for content in contents] == [b"1", b"2", b"3"]
    assert all(b"expired" in content and b"x-death" in content for content in contents)


def test_streams_know_no_expiration(cluster: Cluster) -> None:
    set_handling(cluster, AUTOHEAL)
    client = publisher_at_a(cluster, arguments={"x-queue-type": Field("S", "stream")})
    cut(cluster)
    send(client, b"1", expiration="1000")
    for member in cluster.members.values():
        member.broker.wall_ms += 2_000
    client.take()
    join(cluster)
    assert figures(cluster).sent == 1 and cluster["b"].stream("q").ready_count == 1


def test_ignore_sends_on_what_has_expired(cluster: Cluster) -> None:
    client = publisher_at_a(cluster)
    cut(cluster)
    send(client, b"1", expiration="1000")
    for member in cluster.members.values():
        member.broker.wall_ms += 2_000
    join(cluster)
    assert waiting(cluster) == [b"1"] and figures(cluster).expired == 0
    client.take()


def kept_at_a(cluster: Cluster, *bodies: bytes, **properties: Any) -> Client:
    """What is published at a while b cannot be reached, where disk space is looked at."""
    set_handling(cluster, AUTOHEAL)
    client = publisher_at_a(cluster)
    cut(cluster)
    send(client, *bodies, delivery_mode=2, **properties)
    return client


def test_autoheal_waits_until_the_receiver_has_room_for_all(cluster: Cluster) -> None:
    client, spools = kept_at_a(cluster, b"1", b"2"), cluster["a"].broker.spools
    due = spool(cluster).waiting_bytes
    assert due > spool(cluster).content_bytes > 0
    spools.room_of = {"a": 0, "b": due - 1}.get  # Sending on needs no room here: it makes some.
    join(cluster)
    cluster.tick()
    assert waiting(cluster) == [] and spools.waited == 1
    reason = f"b has room for {due - 1} bytes, and {due} wait to be sent there"
    assert figures(cluster)[3:5] == ("waiting", reason)
    text = f"spools are not sent on until there is enough disk space: {reason}"
    assert cluster["a"].notes.count(("queue", "warning", text)) == 1
    spools.room_of = {"a": 0, "b": due}.get
    cluster.tick()
    assert waiting(cluster) == [b"1", b"2"] and spools.waited == 1 and not spools.short
    assert ("queue", "info", "spools no longer wait for disk space at b") in cluster["a"].notes
    client.take()


def test_autoheal_waits_until_the_receiver_has_told_of_its_room(cluster: Cluster) -> None:
    client, spools = kept_at_a(cluster, b"1"), cluster["a"].broker.spools
    spools.room_of = lambda node: None
    join(cluster)
    assert waiting(cluster) == [] and spools.waited == 0
    assert figures(cluster)[3:5] == ("waiting", "b has not told how much room it has")
    spools.room_of = lambda node: 1 << 20
    spools.wake()
    cluster.run()
    assert waiting(cluster) == [b"1"]
    client.take()


def test_what_waits_for_one_node_is_added_up(cluster: Cluster) -> None:
    client, spools = kept_at_a(cluster, b"1"), cluster["a"].broker.spools
    due = spool(cluster).waiting_bytes
    join(cluster)
    cluster["b"].client().declare("q2", durable=True)
    cut(cluster)
    send(client, b"2", delivery_mode=2)
    client.feed(publish(1, "", "q2", b"3", client.frame_max, delivery_mode=2))
    client.world.turn()
    spools.room_of = {"b": 2 * due - 1}.get
    join(cluster)
    assert [one.messages for one in spools.figures()] == [1, 1] and spools.waited == 1
    spools.room_of = {"b": 2 * due + 1}.get  # The routing key is one byte longer.
    cluster.tick()
    assert [one.messages for one in spools.figures()] == [0, 0]
    client.take()


def test_mirrors_need_room_too(cluster: Cluster) -> None:
    """Those that have a link to this node: of others it is not known."""
    client, spools, remote = kept_at_a(cluster, b"1"), cluster["a"].broker.spools, remote_queue(cluster)
    remote.spec = replace(remote.spec, view=View(1, 1, "b", ("b", "c", "d"), (("b", "disk"),)))
    spools.room_of = {"b": 1 << 20, "c": 0}.get
    join(cluster)
    assert waiting(cluster) == [] and figures(cluster).reason.startswith("c has room for 0 bytes")
    spools.room_of = {"b": 1 << 20, "c": 1 << 20}.get
    cluster.tick()
    assert waiting(cluster) == [b"1"]
    client.take()


def test_what_has_expired_needs_no_room(cluster: Cluster) -> None:
    client, spools = kept_at_a(cluster, b"1", b"2", expiration="1000"), cluster["a"].broker.spools
    due = spool(cluster).waiting_bytes
    send(client, b"3", delivery_mode=2)
    spools.room_of = {"b": due}.get
    join(cluster)
    assert waiting(cluster) == [] and figures(cluster).state == "waiting"
    for member in cluster.members.values():
        member.broker.wall_ms += 2_000
    cluster.tick()
    cluster.tick()
    assert waiting(cluster) == [b"3"] and figures(cluster).expired == 2 and spools.waited == 1
    client.take()


def test_ignore_does_not_ask_for_room(cluster: Cluster) -> None:
    client = publisher_at_a(cluster)
    cut(cluster)
    cluster["a"].broker.spools.room_of = lambda node: 0
    send(client, b"1", delivery_mode=2)
    join(cluster)
    assert waiting(cluster) == [b"1"]
    client.take()
