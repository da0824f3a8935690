"""Leases of one queue at its master: see `leveret.broker.queue.leases`."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.delivery.batch import Gap
from leveret.broker.queue import leases
from leveret.broker.queue.lease import OWNER, Lease, LeaseView, pack_lease, unpack_lease
from leveret.broker.queue.leases import Leases, lease_views, open_lease, take_lease
from leveret.metadata.model.refusals import Refusal
from leveret.metadata.rules.queue_rules import QueueRules
from leveret.storage.format.errors import FormatError
from leveret.storage.format.queue_marks import KEYS_MAX, VALUE_BYTES_MAX
from tests.unit.broker.queue.lease_world import Home


def filled(count: int = 10, **options: Any) -> Home:
    home = Home(**options)
    home.put(*(b"%d" % number for number in range(1, count + 1)))
    home.commit()
    home.open()
    return home


def bodies(home: Home) -> list[bytes]:
    return [body for body, _ in home.drain()]


# -- Taking ----------------------------------------------------------------------------------------------------------


def test_messages_get_places_and_nobody_else_gets_them() -> None:
    home = filled()
    view = home.take(4)
    assert (view.acked, view.next, view.runs, view.out) == (0, 4, [(0, 1, 4)], 4)
    assert (home.queue.ready_count, home.queue.unacked_count) == (6, 4)
    assert home.read(1, 4) == {1: b"1", 2: b"2", 3: b"3", 4: b"4"}
    assert bodies(home) == [b"5", b"6", b"7", b"8", b"9", b"10"]


def test_what_others_have_is_left_out() -> None:
    home = filled()
    first, second = home.get(), home.get()
    assert first is not None and second is not None
    home.queue.requeue(*first, first[1] + 1)
    view = home.take(5)
    assert view.runs == [(0, 1, 1), (1, 3, 6)]
    home.queue.requeue(*second, second[1] + 1)
    assert home.take(1).runs == [(0, 1, 1), (1, 3, 6), (5, 2, 2)]


def test_bytes_limit_what_is_taken_and_one_is_always_given() -> None:
    home = filled()
    assert home.take(10, 1).next == 1
    each = home.queue.ready[0].batch.average_bytes()  # type: ignore[union-attr]
    assert home.take(10, 3 * each).next == 4
    home.content_bytes_max = 0
    home.crash()
    assert isinstance(home.queue.ready[0], Gap)
    size = len(home.log.load(7, 5, 10, 1 << 20).places) and home.log.queues[7].refs.bytes // 10  # type: ignore[union-attr]
    assert home.take(10, 2 * size).next == 6


def test_an_empty_queue_gives_nothing_and_that_is_no_error() -> None:
    home = Home()
    home.open()
    assert home.take().runs == []


def test_what_is_in_the_log_only_is_not_read() -> None:
    home = filled(100)
    home.crash()
    assert home.take(30).runs == [(0, 1, 30)] and not home.wanted
    home.queue.settle_numbers(40, 40)
    home.queue.ready[0].count -= 1  # type: ignore[misc]
    home.queue.ready_count -= 1
    home.commit()
    assert home.take(20).runs == [(0, 1, 39), (39, 41, 51)] and not home.wanted
    assert home.queue.memory_bytes == 0
    assert bodies(home) == [b"%d" % number for number in range(52, 101)]


def test_priorities_are_taken_in_their_order() -> None:
    home = Home(QueueRules(max_priority=5))
    for number, level in enumerate([0, 5, 3, 5], 1):
        home.put(b"%d" % number, level=level)
    home.commit()
    home.open()
    assert home.take(3).runs == [(0, 2, 2), (1, 4, 4), (2, 3, 3)]
    home.crash()
    home.put(b"5", level=4)
    answers: list[Any] = []
    take_lease(home.queue, "l", 1, 1000, answers.append)
    assert not answers, "the order of what is in the log has to be found out first"
    home.commit()
    assert answers[0].runs == [(0, 2, 2), (1, 4, 4), (2, 3, 3), (3, 5, 5)]


def test_what_is_overdue_is_not_taken() -> None:
    home = Home(QueueRules(ttl_ms=1000))
    home.put(b"1")
    home.commit()
    home.wall_ms += 2000
    home.put(b"2")
    home.open()
    assert home.take().runs == [(0, 2, 2)]
    home.wall_ms += 5000
    home.commit()
    assert home.read(2, 2) == {2: b"2"}, "what is leased does not grow old"


def test_memory_forgets_what_the_log_has() -> None:
    home = filled(1)
    home.put(b"2", kind=0)
    home.put(b"3")
    before = home.content_bytes
    home.take()
    assert 0 < home.content_bytes < before, "the first is in the log; the batch of the others is not, as a whole"
    assert home.read(1, 3) == {1: b"1", 2: b"2", 3: b"3"}
    home.ack(3)
    assert home.content_bytes == 0 and not list(home.queue.extension(Leases).held())  # type: ignore[union-attr]


# -- Acknowledging ---------------------------------------------------------------------------------------------------


def test_acknowledging_settles_and_may_be_said_twice() -> None:
    home = filled()
    home.take(6)
    assert home.ack(4).runs == [(4, 5, 6)]
    assert (home.queue.unacked_count, home.queue.totals.acked) == (2, 4)
    again = home.ack(2)
    assert (again.acked, again.next, again.runs) == (4, 6, [(4, 5, 6)])
    home.crash()
    assert home.log.queues[7].live.first == 5
    assert home.open().runs == [(4, 5, 6)]


@pytest.mark.parametrize("through", [-1, 4, 1 << 40])
def test_what_was_never_given_cannot_be_acknowledged(through: int) -> None:
    home = filled()
    home.take(3)
    refused = home.ack(through)
    assert isinstance(refused, Refusal) and refused.code == 406 and "has given 3 places" in refused.text


# -- Releasing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
def test_what_is_released_waits_where_it_was_marked_as_redelivered(restarted: bool) -> None:
    home = filled(6)
    home.take(4)
    home.ack(1)
    if restarted:
        home.crash()
    view = home.release()
    assert (view.runs, view.acked, view.next) == ([], 5, 5)
    if restarted:
        home.crash()
    expected = [(b"2", True), (b"3", True), (b"4", True), (b"5", False), (b"6", False)]
    assert home.drain() == expected
    assert not home.queue.unacked_count and not lease_views(home.queue)


def test_a_lease_that_is_opened_again_goes_on_counting() -> None:
    """Whoever acknowledges by a former place hits nothing; and whoever had the last place sees that it is gone."""
    home = filled(6)
    home.take(4)
    home.release()
    home.crash()
    assert isinstance(home.take(2), Refusal)
    assert (home.open().acked, home.take(2).runs) == (5, [(5, 1, 2)])
    assert home.ack(4).runs == [(5, 1, 2)]
    home.ack(7)
    home.release()
    assert home.open().acked == 7  # There was nothing to be given back.


def test_closed_leases_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "LEASES_MAX", 3)
    home = Home()
    for name in ("a", "b"):
        home.open(name)
        home.release(name)
        home.wall_ms += 1
    home.crash()
    home.open("c")
    home.open("d")
    assert list(home.queue.extension(Leases).closed) == ["b"]  # type: ignore[union-attr]
    home.open("e")
    refused = home.open("f")
    assert refused == Refusal(406, "queue 'q' in vhost '/' has reached the limit of leases")
    assert sorted(home.queue.durable_state.table) == [b"lease:c", b"lease:d", b"lease:e"]
    home.wall_ms += leases.CLOSED_MS + 1


def test_a_lease_that_nobody_uses_is_released_by_itself() -> None:
    home = filled(3)
    home.open("l", 5000)
    home.take()
    home.wall_ms += 4999
    home.commit()
    assert home.queue.unacked_count == 3
    home.open()  # Not worth a block, but heard.
    home.wall_ms += 4999
    home.commit()
    assert home.queue.unacked_count == 3 and not home.notes
    assert home.timers.due(home.wall_ms + 1) == [home.queue]
    home.wall_ms += 1
    home.commit()
    assert home.drain() == [(b"1", True), (b"2", True), (b"3", True)]
    assert home.notes == ["lease 'l' of queue 'q' in vhost '/' was not used for 5 s and is released"]


def test_a_lease_is_released_after_a_restart_too() -> None:
    home = filled(3)
    home.open("l", 5000)
    home.take()
    home.wall_ms += 6000
    home.crash()
    home.commit()
    assert bodies(home) == [b"1", b"2", b"3"]


def test_closed_leases_are_forgotten_in_the_end() -> None:
    home = filled(1)
    home.release()
    home.wall_ms += leases.CLOSED_MS + 1
    home.commit()
    assert not home.queue.durable_state.table
    home.crash()
    assert home.open().next == 0


# -- What lasts ------------------------------------------------------------------------------------------------------


def test_nothing_is_told_before_it_is_safe() -> None:
    home = filled(3)
    answers: list[Any] = []
    take_lease(home.queue, "l", 2, 1000, answers.append)
    open_lease(home.queue, "l", None, answers.append)
    home.turn()
    assert not answers and lease_views(home.queue)[0].runs == []
    home.crash()
    assert not answers and home.take(3).runs == [(0, 1, 3)]


def test_a_touch_is_not_worth_a_block() -> None:
    home = filled(3)
    number = home.queue.number
    for _ in range(5):
        home.wall_ms += 1000
        home.take(1 << 30, name="l") if home.queue.number == number else home.open()
    assert home.queue.number == number + 1
    home.wall_ms += leases.TOUCH_MS
    home.open()
    assert home.queue.number == number + 2


def test_a_number_means_nothing_else_after_a_restart() -> None:
    """Of transient messages the log knows nothing, not even that there were any."""
    home = filled(2)
    home.put(b"t", b"u", kind=0)
    assert home.take().runs == [(0, 1, 4)]
    home.crash()
    home.put(b"new")
    home.commit()
    assert home.open().runs == [(0, 1, 4)] and home.read(1, 100) == {1: b"1", 2: b"2", 5: b"new"}
    assert home.queue.unacked_count == 2
    assert home.ack(3).runs == [(3, 4, 4)] and home.queue.unacked_count == 0
    home.release()
    assert bodies(home) == [b"new"]


def test_checkpoints_and_indexes_know_of_leases() -> None:
    home = filled(60)
    for count in range(1, 20):
        home.take(3)
        home.ack(count)
        home.put(bytes(300))
        home.commit()
        home.maintain()
    view = home.open()
    for _ in range(2):
        home.crash()
        assert home.open()[:4] == view[:4]
        home.maintain()


def test_a_queue_that_does_not_last_has_leases_that_do_not() -> None:
    home = filled(3, durable=False)
    assert home.take(2).runs == [(0, 1, 2)]
    assert home.queue.number == 0, "it has no blocks"
    home.crash()
    assert isinstance(home.take(2), Refusal)


# -- Refusals --------------------------------------------------------------------------------------------------------


def test_refusals() -> None:
    home = filled(1)
    for answer in (home.take(1, name="x"), home.ack(0, "x"), home.release("x")):
        assert answer == Refusal(404, "no lease 'x' of queue 'q' in vhost '/'")
    for name in ("", "é" * 65, "\ud800"):
        assert home.open(name) == Refusal(406, "a lease's name is UTF-8 of 1 to 128 bytes")
    for timeout_ms in (0, -1, leases.TIMEOUT_MS_MAX + 1):
        assert home.open("l", timeout_ms).code == 406
    for count, size in ((0, 1), (1, 0)):
        assert home.take(count, size).code == 406
    home.queue.freeze()
    assert home.open() == Refusal(404, "home node 'node' of durable queue 'q' in vhost '/' is down or inaccessible")
    home.queue.thaw()
    home.queue.on_deleted()
    assert home.open() == Refusal(404, "no queue 'q' in vhost '/'")


def test_who_waits_is_told_that_the_queue_is_gone() -> None:
    home = filled(1)
    answers: list[Any] = []
    take_lease(home.queue, "l", 1, 1, answers.append)
    home.queue.on_deleted()
    assert answers == [Refusal(404, "no queue 'q' in vhost '/'")]


def test_a_lease_in_too_many_pieces_takes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "VALUE_BYTES_MAX", 40 + 4 * 30)
    home = filled(30)
    keep = []
    while (got := home.get()) is not None:
        keep.append(got)
    for batch, at in keep[::2]:
        home.queue.requeue(batch, at, at + 1)
    home.crash()
    home.queue.settle_numbers(2, 2)
    for number in range(4, 20, 2):
        home.queue.settle_numbers(number, number)
    home.commit()
    view = home.take()
    assert len(view.runs) == 4
    refused = home.take()
    assert refused.code == 406 and "in too many pieces" in refused.text
    home.ack(2)
    assert len(home.take().runs) == 4


def test_limits_hold_whatever_the_numbers_are() -> None:
    lease = Lease("l")
    count = (VALUE_BYTES_MAX - 40) // 30
    firsts = [1 << 62 if at % 2 else 1 for at in range(count)]
    lease.runs = [(at << 50, first, first + (1 << 49)) for at, first in enumerate(firsts)]
    assert len(pack_lease(lease)) <= VALUE_BYTES_MAX and leases.LEASES_MAX < KEYS_MAX


# -- Bytes -----------------------------------------------------------------------------------------------------------


def test_packing() -> None:
    lease = Lease("n")
    lease.acked, lease.next, lease.top, lease.touched_ms = 3, 1 << 40, 1 << 50, 1 << 41
    lease.runs = [(3, 100, 200), (104, 5, 5), (1000, 300, 1 << 49)]
    again = unpack_lease("n", pack_lease(lease))
    assert again.view() == lease.view() and again.top == lease.top
    for cut in (0, 39, len(pack_lease(lease)) - 1):
        with pytest.raises(FormatError):
            unpack_lease("n", pack_lease(lease)[:cut])


def test_views_are_copies() -> None:
    home = filled(2)
    view = home.take(1)
    view.runs.clear()
    assert isinstance(home.open(), LeaseView) and home.open().runs == [(0, 1, 1)]


# -- Owners ----------------------------------------------------------------------------------------------------------


def test_a_lease_with_an_owner_is_his_alone() -> None:
    home = filled()
    assert home.open(owner="one").owner == "one"
    refused = Refusal(530, "lease 'l' of queue 'q' in vhost '/' belongs to another reader, one")
    assert home.take(4, owner="one").next == 4
    for owner in ("", "two"):
        assert home.take(4, owner=owner) == home.ack(1, owner=owner) == refused
    assert home.open(owner="two") == refused
    assert home.open().owner == "one", "to look at it is no harm"
    assert home.ack(2, owner="one").acked == 2 and lease_views(home.queue)[0].next == 4


def test_a_lease_is_taken_over_and_the_former_owner_refused() -> None:
    home = filled()
    home.open(owner="one")
    home.take(4, owner="one")
    view = home.open(owner="two", takeover=True)
    assert (view.owner, view.runs) == ("two", [(0, 1, 4)])
    assert home.ack(4, owner="one").code == 530 and home.ack(4, owner="two").acked == 4


def test_a_restart_knows_the_owner() -> None:
    home = filled()
    home.open(owner="one")
    home.crash()
    assert home.take(1, owner="two").code == 530
    assert home.take(1, owner="one").owner == "one"


def test_who_has_none_may_get_one() -> None:
    home = filled()
    home.take(2)
    assert home.open(owner="one").runs == [(0, 1, 2)] and home.take(1).code == 530


@pytest.mark.parametrize("by", ["release", "time"])
def test_a_lease_that_was_released_is_nobodys(by: str) -> None:
    home = filled()
    home.open(owner="one", timeout_ms=1_000)
    if by == "release":
        home.release()
    else:
        home.wall_ms += 2_000
        home.queue.extension(Leases).on_turn()  # type: ignore[union-attr]
    home.commit()
    home.crash()
    assert home.open().owner == "" and home.take(1, owner="two").next == 1
    assert not [key for key in home.queue.durable_state.table if key.startswith(OWNER)]


@pytest.mark.parametrize("owner", ["x" * 65, "line\nbreak"])
def test_owners_that_cannot_be(owner: str) -> None:
    assert filled().open(owner=owner) == Refusal(406, "a lease's owner is text of 1 to 64 bytes")
