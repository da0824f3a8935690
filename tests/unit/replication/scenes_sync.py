"""A member that lacks messages; and promotions by force."""

from __future__ import annotations

from typing import Any

from leveret.replication.catch_up import BATCHES, YIELD_TICKS, YIELD_TIMES, pieces
from leveret.replication.member import Member
from leveret.replication.ring_frames import (
    Append,
    Attach,
    Blocks,
    Complete,
    Deny,
    Fetch,
    Fill,
    Leave,
    Left,
    Options,
    Piece,
    Poll,
    Pulse,
    Read,
    Reset,
    Restart,
    Standing,
    Started,
)
from leveret.storage.format.queue_block import Run

from .lab import (
    applied,
    block,
    blocks,
    drain,
    feed,
    follow,
    found,
    give,
    lead,
    member,
    numbers,
    proposed,
    sent,
    tick,
    view,
)
from .scenes import changes, scenario

# -- filling -------------------------------------------------------------------------


def hollow(cut: int = 5, bound: int = 3, **options: Any) -> Member:
    """b, reset at a cut of epoch 2, and fed up to the next block."""
    mirror = follow(None, "a", options=Options(**options))
    mirror.on_frame("a", Reset(2, 2, cut, ((2, 1),), 0, bound))
    drain(mirror)
    feed(mirror, cut, (2, cut), block(2, cut + 1))
    return mirror


def run_of(first: int, *contents: bytes) -> Run:
    return Run(first, list(contents), [b"k"] * len(contents), bytearray([1]) * len(contents))


@scenario
def a_reset_member_fills_in_pieces() -> None:
    mirror = follow(None, "a")
    effects = give(mirror, "a", Reset(2, 2, 5, ((2, 1),), 0, 3))
    assert sent(effects, Fetch, "a") == [Fetch(2, 5, 0, 3, (), 1 << 20)]
    feed(mirror, 5, (2, 5), block(2, 6))
    drain(mirror)
    effects = give(mirror, "a", Piece(2, 5, 0, (), 2, ((1, 2),), (run_of(1, b"x", b"y"),), 5), sync=False)
    assert [one.live for one in changes(effects, Fill)] == [((1, 2),)]
    assert not sent(effects, Fetch), "the next one when this is on disk"
    mirror.on_synced(mirror.written)
    effects = drain(mirror)
    assert sent(effects, Fetch)[0].after == 2 and numbers(effects, "b")[-1].lacks == ((3, 3),)
    effects = give(mirror, "a", Piece(2, 5, 2, (), 3, (), (), 5))
    assert changes(effects, Complete) and numbers(effects, "b")[-1][2:5] == (6, 6, True)


@scenario
def one_that_lacks_no_message_is_given_the_marks_all_the_same() -> None:
    mirror = follow(None, "a")
    effects = give(mirror, "a", Reset(2, 2, 5, ((2, 1),), 0, 0))
    assert sent(effects, Fetch, "a") == [Fetch(2, 5, 0, 0, (), 1 << 20)] and not changes(effects, Complete)
    feed(mirror, 5, (2, 5), block(2, 6))
    drain(mirror)
    marks = ((4, b"name", b"value"),)
    effects = give(mirror, "a", Piece(2, 5, 0, (), 0, (), (), 5, (), marks))
    assert [one.marks for one in changes(effects, Fill)] == [marks] and changes(effects, Complete)


@scenario
def one_that_gets_no_answer_asks_less_and_less_often() -> None:
    """Each request brings an answer of up to a megabyte, which may be on its way over a slow link."""
    mirror = hollow()
    drain(mirror)
    assert [number for number in range(1, 200) if sent(tick(mirror), Fetch)] == [4, 11, 24, 49, 98, 147, 196]
    effects = give(mirror, "a", Piece(2, 5, 0, (), 1, ((1, 1),), (run_of(1, b"x"),), 5))
    assert [one.after for one in sent(effects, Fetch)] == [1]
    assert not sent(tick(mirror, 3), Fetch)
    assert [one.after for one in sent(tick(mirror), Fetch)] == [1]


@scenario
def one_whose_node_has_other_work_rests_between_pieces() -> None:
    mirror = hollow()
    drain(mirror)
    mirror.filling.yielding = True
    effects = give(mirror, "a", Piece(2, 5, 0, (), 1, ((1, 1),), (run_of(1, b"x"),), 5))
    effects += tick(mirror, YIELD_TICKS - 1)
    assert not sent(effects, Fetch)
    assert [one.after for one in sent(tick(mirror), Fetch)] == [1]
    tick(mirror, 2)
    effects = give(mirror, "a", Piece(2, 5, 1, (), 2, ((2, 2),), (run_of(2, b"y"),), 5))
    effects += tick(mirror, 2 * (YIELD_TIMES - 1) - 1)
    assert not sent(effects, Fetch), "it took two ticks to come: the rest is longer"
    assert [one.after for one in sent(tick(mirror), Fetch)] == [2]


@scenario
def one_whose_node_has_no_other_work_does_not_rest() -> None:
    mirror = hollow()
    drain(mirror)
    tick(mirror)
    effects = give(mirror, "a", Piece(2, 5, 0, (), 1, ((1, 1),), (run_of(1, b"x"),), 5))
    assert [one.after for one in sent(effects, Fetch)] == [1]


@scenario
def cut_and_tail_must_meet() -> None:
    mirror = hollow()
    drain(mirror)
    give(mirror, "a", Piece(2, 5, 0, (), 3, (), (), 7))
    assert not mirror.complete, "the piece was read later than what has come here"
    feed(mirror, 7, (2, 6), block(2, 7))
    drain(mirror)
    assert mirror.complete


@scenario
def one_that_was_filled_when_it_was_restarted_is_complete() -> None:
    mirror = follow(found(2, 2, base=2, complete=False, cut=2, bound=3, after=3, read_at=2), "a")
    assert changes(tick(mirror), Complete) and mirror.complete
    mirror = follow(found(2, 2, base=2, complete=False, cut=2, bound=3, after=3, read_at=3), "a")
    assert not changes(tick(mirror), Complete), "what filled it was read later"


@scenario
def complete_is_said_when_the_disk_knows() -> None:
    mirror = hollow()
    drain(mirror)
    effects = give(mirror, "a", Piece(2, 5, 0, (), 3, (), (), 5), sync=False)
    mirror.on_peer_up("a")
    effects += drain(mirror, sync=False)
    assert mirror.complete and not any(entry.complete or entry.durable for entry in numbers(effects, "b"))


@scenario
def a_member_in_sync_whose_disk_has_lost_blocks_leaves() -> None:
    """An old backup was put back, say. It drops nothing before a view without it is agreed on."""
    mirror = follow(found(2, 2), "abc")
    effects = give(mirror, "a", Reset(2, 2, 5, ((2, 1),), 2, 3))
    assert sent(effects, Leave, "a") and sent(effects, Leave, "c") and not changes(effects, Restart)
    assert mirror.tail.end == 2 and not mirror.failed
    mirror.on_view(view(3, 2, "a", "ac", "ac"))
    assert Left(3) in drain(mirror)


@scenario
def a_reset_by_a_newer_view_is_not_obeyed_before_that_view_is_here() -> None:
    mirror = follow(found(2, 2), "abc")
    effects = give(mirror, "a", Reset(2, 3, 5, ((2, 1),), 2, 3))
    assert not sent(effects, Leave) and not changes(effects, Restart)


@scenario
def one_that_has_left_and_returned_to_the_ring_is_another_copy() -> None:
    mirror = follow(found(2, 2), "abc")
    give(mirror, "c", Leave(2))
    assert mirror.doubt.left == {"c"}
    mirror.on_view(view(3, 2, "a", "ab", "ab"))
    mirror.on_view(view(4, 2, "a", "ab", "abc"))
    assert mirror.doubt.left == set()


@scenario
def nothing_counts_before_the_new_beginning_is_on_disk() -> None:
    mirror = follow(found(2, 2), "a")
    mirror.on_frame("a", Reset(2, 2, 5, ((2, 1),), 2, 3))
    mirror.on_peer_up("a")
    assert all(entry.durable == 0 for entry in numbers(drain(mirror, sync=False), "b"))


@scenario
def an_answer_to_an_older_question_is_ignored() -> None:
    mirror = hollow()
    drain(mirror)
    assert not changes(give(mirror, "a", Piece(2, 4, 0, (), 3, (), (), 5)), Fill)
    assert not changes(give(mirror, "a", Piece(2, 5, 1, (), 3, (), (), 5)), Fill)
    assert not changes(give(mirror, "a", Piece(2, 5, 0, ((1, 1),), 3, ((1, 1),), (), 5)), Fill), "as if it had that"


@scenario
def a_returning_member_keeps_what_it_has() -> None:
    log = found(2, 2)._replace(blocks=(block(2, 1, 1, (b"x", b"y")), block(2, 2, 3, (b"z",))))
    mirror = follow(log, "a")
    effects = give(mirror, "a", Reset(2, 2, 9, ((2, 1),), 2, 7))
    restart = changes(effects, Restart)[0]
    assert restart == Restart(9, ((2, 1),), 7, ((1, 3),), 0) and applied(effects) == [1, 2]


@scenario
def what_was_fetched_before_an_interruption_is_kept_too() -> None:
    mirror = hollow(cut=5, bound=10)
    drain(mirror)
    give(mirror, "a", Piece(2, 5, 0, (), 4, ((1, 4),), (run_of(1, b"x", b"y", b"z", b"w"),), 8))
    feed(mirror, 7, (2, 6), block(2, 7, 11, (b"n",)))
    drain(mirror)
    restart = changes(give(mirror, "a", Reset(2, 2, 20, ((2, 1),), 7, 15)), Restart)[0]
    assert restart == Restart(20, ((2, 1),), 15, ((1, 4), (11, 11)), 8)


@scenario
def what_belongs_to_another_log_is_not_kept() -> None:
    mirror = hollow(cut=5, bound=10)
    drain(mirror)
    give(mirror, "a", Piece(2, 5, 0, (), 4, ((1, 1),), (run_of(1, b"x"),), 5))
    restart = changes(give(mirror, "a", Reset(2, 2, 20, ((2, 1),), 3, 15)), Restart)[0]
    assert restart == Restart(20, ((2, 1),), 15, (), 0), "its cut is not in what both logs have"
    mirror = follow(found(2, 2, 2, base=3, messages=5), "a")
    mirror.on_view(view(3, 3, "c", "c", lossy=3))
    drain(mirror)
    restart = changes(give(mirror, "c", Reset(3, 3, 20, ((2, 1), (3, 3)), 2, 15)), Restart)[0]
    assert restart == Restart(20, ((2, 1), (3, 3)), 15, (), 0), "it has applied what the ring does not have"


@scenario
def one_who_believes_itself_in_sync_drops_nothing() -> None:
    mirror = follow(found(2))
    effects = give(mirror, "a", Reset(3, 3, 9, ((2, 1),), 1, 5)) + give(mirror, "a", Reset(2, 3, 9, ((2, 1),), 1, 5))
    assert mirror.tail.end == 1 and not changes(effects, Restart)


@scenario
def a_reset_carries_the_version_of_what_was_confirmed() -> None:
    mirror = follow(options=Options(retain_bytes=0))
    feed(mirror, 3, (0, 0), *blocks(2, 1, 3), version=5)
    drain(mirror)
    assert mirror.tail.base == 3
    assert sent(give(mirror, "c", Attach(2, 2, ((2, 1),), 1)), Reset, "c")[0].version == 5


@scenario
def a_reset_that_is_not_needed_changes_nothing() -> None:
    mirror = follow(found(2, 2, 2), "a")
    assert not changes(give(mirror, "a", Reset(2, 2, 2, ((2, 1),), 0, 5)), Restart)


@scenario
def a_source_is_complete_and_has_reached_the_cut() -> None:
    source = follow(found(2, 2, base=2))
    assert not any(isinstance(one, Read) for one in give(source, "c", Fetch(2, 3, 0, 5, (), 100)))
    reads = [one for one in give(source, "c", Fetch(2, 2, 0, 5, (), 100)) if isinstance(one, Read)]
    assert len(reads) == 1 and reads[0].request.read_at == 2
    assert not drain(source) and not give(source, "c", Fetch(2, 2, 0, 5, (), 100)), "one read at a time"
    source.on_read(reads[0].request, ((1, 1),), (run_of(1, b"x"),), 4)
    assert sent(drain(source), Piece, "c") == [Piece(2, 2, 0, (), 4, ((1, 1),), (run_of(1, b"x"),), 2)]


@scenario
def one_that_has_a_message_is_told_that_it_may_have_been_delivered() -> None:
    source = follow(found(2, 2, base=2))
    (read,) = (one for one in give(source, "c", Fetch(2, 2, 0, 3, ((1, 3),), 100)) if isinstance(one, Read))
    source.on_read(read.request, ((1, 3),), (), 3, requeued=((2, 3),))
    (piece,) = sent(drain(source), Piece, "c")
    assert piece == Piece(2, 2, 0, ((1, 3),), 3, ((1, 3),), (), 2, requeued=((2, 3),))
    effects = give(hollow(), "a", Piece(2, 5, 0, (), 3, ((2, 3),), (), 5, requeued=((2, 3),)))
    assert [one.requeued for one in changes(effects, Fill)] == [((2, 3),)]


@scenario
def a_fuzzy_copy_gives_no_pieces() -> None:
    source = follow(found(2, 2, 2, base=1, read_at=3))
    assert not any(isinstance(one, Read) for one in give(source, "c", Fetch(2, 1, 0, 5, (), 100)))
    mirror = hollow()
    drain(mirror)
    assert not any(isinstance(one, Read) for one in give(mirror, "c", Fetch(2, 1, 0, 5, (), 100)))


@scenario
def a_hollow_log_resets_nobody() -> None:
    mirror = hollow()
    drain(mirror)
    effects = give(mirror, "c", Attach(2, 2, (), 0))
    assert sent(effects, Deny, "c") and not sent(effects, Reset)


@scenario
def another_source_is_asked_if_one_does_not_answer() -> None:
    mirror = member("c")
    mirror.on_view(view(2, 2, "a", "ab"))
    drain(mirror)
    mirror.on_frame("b", Reset(2, 2, 5, ((2, 1),), 0, 3))
    feed(mirror, 5, (2, 5), block(2, 6), src="b")
    effects = drain(mirror) + tick(mirror, 10)
    assert sent(effects, Fetch, "b") and sent(effects, Fetch, "a")


@scenario
def the_rate_of_filling_is_capped() -> None:
    mirror = hollow(bound=9, fill_bytes_per_tick=3)
    drain(mirror)
    effects = give(mirror, "a", Piece(2, 5, 0, (), 2, ((1, 2),), (run_of(1, b"xxx", b"yyy"),), 5))
    assert not sent(effects, Fetch)
    assert sent(tick(mirror), Fetch)[0].after == 2


@scenario
def pieces_may_be_limited_in_messages() -> None:
    mirror = hollow(bound=9, fill_messages=3)
    asked = (sent(drain(mirror), Fetch) or sent(tick(mirror, 4), Fetch))[0]
    assert (asked.after, asked.bound, asked.batch) == (0, 9, 3)
    whole = Piece(2, 5, 0, (), 8, ((1, 3), (6, 6)), (run_of(1, b"a", b"b", b"c"), run_of(6, b"x")), 5, ((2, 6, 1),))
    whole = whole._replace(requeued=((1, 1), (3, 6)))
    first, second = pieces(whole, 3)
    assert [run.first for run in first.runs] == [1] and (first.after, first.upto, first.more) == (0, 5, True)
    assert (first.live, first.counts, first.requeued) == (((1, 3),), ((2, 5, 1),), ((1, 1), (3, 5)))
    assert [run.first for run in second.runs] == [6] and (second.after, second.upto, second.more) == (5, 8, False)
    assert (second.live, second.counts, second.requeued) == (((6, 6),), ((6, 6, 1),), ((6, 6),))
    assert list(pieces(whole, 4)) == [whole]
    assert not sent(give(mirror, "a", first), Fetch), "the rest of the answer is on its way"
    asked = sent(give(mirror, "a", second), Fetch)[0]
    assert (asked.after, asked.bound) == (8, 9)


@scenario
def an_answer_of_small_pieces_has_not_too_many() -> None:
    whole = Piece(2, 5, 0, (), 1_000_000, ((1, 1_000_000),), (), 5)
    found = list(pieces(whole, 1))
    assert len(found) <= BATCHES and found[-1].upto == 1_000_000
    assert [one.after for one in found[1:]] == [one.upto for one in found[:-1]]
    assert list(pieces(whole, 0)) == [whole]


@scenario
def numbers_without_messages_are_passed_over_in_one_piece() -> None:
    """A queue that was moved has left out 2^32 of them."""
    far = 1 << 32
    whole = Piece(2, 5, 0, (), far + 9, ((1, 2), (far, far)), (), 5)
    found = [(one.after, one.upto, one.live) for one in pieces(whole, 1)]
    assert found == [(0, 1, ((1, 1),)), (1, far - 1, ((2, 2),)), (far - 1, far + 9, ((far, far),))]


@scenario
def a_large_piece_uses_up_the_rate_of_later_ticks() -> None:
    mirror = hollow(bound=9, fill_bytes_per_tick=10)
    drain(mirror)
    tick(mirror, 4)
    give(mirror, "a", Piece(2, 5, 0, (), 1, ((1, 1),), (run_of(1, bytes(35)),), 5))
    assert not sent(tick(mirror, 2), Fetch), "35 bytes are more than two ticks allow"
    assert sent(tick(mirror), Fetch)[0].after == 1


@scenario
def filling_that_is_switched_off_asks_for_no_contents() -> None:
    mirror = follow(None, "a", options=Options(filling=False))
    assert sent(give(mirror, "a", Reset(2, 2, 5, ((2, 1),), 0, 3)), Fetch)[0].bytes_max == 0
    feed(mirror, 6, (2, 5), block(2, 6))
    drain(mirror)
    assert not changes(give(mirror, "a", Piece(2, 5, 0, (), 0, (), (), 5)), Fill)
    assert sent(tick(mirror, 14), Fetch)[0].bytes_max == 0
    give(mirror, "a", Piece(2, 5, 0, (), 3, (), (), 6))
    assert mirror.complete, "all that it lacked was consumed"
    other = hollow(filling=False)
    drain(other)
    tick(other, 14)
    other.filling.start()
    assert sent(drain(other) + tick(other, 14), Fetch)[-1].bytes_max > 0


@scenario
def an_order_not_to_fill_ends_with_the_epoch_it_was_given_in() -> None:
    """The next master may not know of it, and its first Pulse may come before the view."""
    mirror = hollow()
    give(mirror, "a", Pulse(2, True, 6, False))
    assert sent(tick(mirror, 14), Fetch)[-1].bytes_max == 0
    mirror.on_view(view(3, 3, "a", "a"))
    drain(mirror)
    feed(mirror, 6, (2, 6), block(3, 7), version=3)
    assert mirror.ordered is None and sent(tick(mirror, 4), Fetch)[-1].bytes_max > 0


@scenario
def an_order_to_fill_is_kept_when_another_master_follows() -> None:
    mirror = hollow(filling=False)
    give(mirror, "a", Pulse(2, True, 6, True))
    mirror.on_view(view(3, 3, "a", "a"))
    give(mirror, "a", Pulse(3, True, 7))
    feed(mirror, 6, (2, 6), block(3, 7), version=3)
    assert mirror.ordered and sent(tick(mirror, 4), Fetch)[-1].bytes_max > 0


@scenario
def a_mirror_hears_that_an_order_not_to_fill_has_ended() -> None:
    for filling in (True, False):
        mirror = hollow(filling=filling)
        give(mirror, "a", Pulse(2, True, 6, False))
        give(mirror, "a", Pulse(2, True, 6))
        assert mirror.ordered is None
        assert (sent(tick(mirror, 14), Fetch)[-1].bytes_max > 0) == filling, "as the options say"


@scenario
def a_master_tells_all_that_an_order_not_to_fill_has_ended() -> None:
    master = lead("a")
    master.order(False)
    assert sent(drain(master), Pulse, "b") == [Pulse(2, True, 1, False)]
    master.end_order()
    effects = drain(master)
    assert sent(effects, Pulse, "b") == sent(effects, Pulse, "c") == [Pulse(2, True, 1)]
    master.end_order()
    assert not sent(drain(master), Pulse), "there was none"


@scenario
def an_order_ends_at_the_master_when_all_are_in_sync() -> None:
    """They may be because what they lacked was consumed. Who lacks something later is filled as the options say."""
    for fill in (True, False):
        master = lead("a")
        master.order(fill)
        master.on_view(view(3, 2, "a", "ab"))
        assert master.ordered is fill, "c is not in sync"
        drain(master)
        master.on_view(view(4, 2, "a", "abc"))
        assert master.ordered is None
        assert sent(drain(master), Pulse, "b") == ([] if fill else [Pulse(2, True, 1)])


# -- force ---------------------------------------------------------------------------


@scenario
def a_forced_promotion_names_what_is_lost() -> None:
    mirror = member("b", found(2, 2, base=2, complete=False, cut=2, bound=5), lost=((1, 1), (4, 5)))
    mirror.on_view(view(2, 2, "a", "a"))
    drain(mirror)
    assert mirror.force()
    one = proposed(drain(mirror))[0]
    assert one == view(3, 3, "b", "b", lossy=3, void=3)
    mirror.on_view(one)
    effects = drain(mirror)
    started = next(effect for effect in effects if isinstance(effect, Started))
    assert started.forced and started.number == 3 and changes(effects, Complete)
    assert changes(effects, Append)[0].blocks[0].settled == [(1, 1), (4, 5)]


@scenario
def a_forced_promotion_of_a_complete_log_loses_only_blocks() -> None:
    mirror = follow(found(2, 2, base=1), "a")
    assert mirror.force() and proposed(drain(mirror)) == [view(3, 3, "b", "b", lossy=3)]


@scenario
def a_log_that_lacks_messages_leads_only_if_all_were_told() -> None:
    mirror = member("b", found(2, 2, base=2, complete=False, cut=2, bound=5))
    mirror.on_view(view(2, 2, "a", "a"))
    mirror.on_view(view(3, 3, "b", "b", lossy=3))
    effects = drain(mirror) + tick(mirror, 20)
    assert mirror.master is None and not proposed(effects)


@scenario
def what_is_stored_of_a_void_log_is_dropped() -> None:
    mirror = follow(found(2, 2, base=2), "a")
    mirror.on_view(view(3, 3, "c", "c", lossy=3, void=3))
    assert changes(drain(mirror), Restart) == [Restart(0, (), 0, (), 0)]


@scenario
def confirmed_blocks_give_way_to_a_forced_promotion() -> None:
    mirror = follow(found(2, 2, 2, base=3), "a")
    mirror.on_view(view(3, 3, "c", "c", lossy=3))
    drain(mirror)
    mirror.on_frame("c", Blocks(3, 3, 0, 2, 1, blocks(3, 2, 2)))
    effects = drain(mirror)
    assert changes(effects, Restart) == [Restart(0, (), 0, (), 0)] and sent(effects, Attach, "c")[-1].end == 0


@scenario
def what_was_confirmed_before_a_forced_promotion_is_not_passed_on() -> None:
    mirror = member("a", found(2, 2, 2, base=3))
    mirror.on_view(view(2, 2, "b", "ab"))
    mirror.on_view(view(3, 3, "c", "c", lossy=3))
    mirror.on_frame("c", Blocks(3, 3, 0, 2, 3, blocks(3, 4, 4)))
    drain(mirror)
    assert sent(give(mirror, "b", Attach(3, 3, ((2, 1),), 3)), Blocks, "b")[0].confirmed == 0
    mirror.on_frame("c", Blocks(3, 3, 4, 3, 4, ()))
    drain(mirror)
    assert sent(tick(mirror), Blocks, "b")[-1].confirmed == 4


def orphan(**options: Any) -> Member:
    """c, whose ring is a, b, c and d; a and b were in sync."""
    mirror = member("c", found(2, 2), Options(orphaned=4, **options))
    mirror.on_view(view(2, 2, "a", "ab", "abcd"))
    drain(mirror)
    mirror.on_peer_down("a")
    mirror.on_peer_down("b")
    drain(mirror)
    return mirror


@scenario
def without_a_policy_nobody_is_forced() -> None:
    effects = tick(orphan(), 50)
    assert not proposed(effects) and not sent(effects, Poll)


@scenario
def a_policy_may_force_the_best_when_nobody_in_sync_is_left() -> None:
    mirror = orphan(promote_always=True)
    effects = tick(mirror, 4)
    assert not proposed(effects) and not sent(effects, Poll)
    assert sent(tick(mirror, 1), Poll, "d")
    give(mirror, "d", Standing(2, "d.0", 2, 3, False, False))
    assert proposed(tick(mirror, 5)) == [view(3, 3, "c", "c", "abcd", lossy=3)], "d has more blocks, but lacks messages"
    mirror = orphan(promote_always=True)
    tick(mirror, 5)
    give(mirror, "d", Standing(2, "d.0", 2, 3, False, True))
    assert not proposed(tick(mirror, 5)), "d will do it"


@scenario
def nobody_is_forced_without_a_majority() -> None:
    mirror = orphan(promote_always=True)
    mirror.on_majority(False)
    assert not proposed(tick(mirror, 50)), "it would wait for the majority, and depose a master that served all along"
    mirror.on_majority(True)
    assert not proposed(tick(mirror, 4))
    assert proposed(tick(mirror, 10))


@scenario
def nobody_is_forced_while_one_in_sync_is_reached() -> None:
    mirror = orphan(promote_always=True)
    mirror.on_peer_up("b")
    assert not proposed(drain(mirror) + tick(mirror, 50))
    give(mirror, "b", Standing(2, "b.0", 1, 1, False, True))
    assert not proposed(tick(mirror, 4)), "it is in sync, whatever it has"
    tick(mirror, 4)
    give(mirror, "b", Standing(2, "b.1", 0, 0, False, True))
    assert proposed(tick(mirror, 4)), "it came back wiped"
    mirror = orphan(promote_always=True)
    tick(mirror, 5)
    give(mirror, "d", Standing(2, "d.0", 2, 1, True, True))
    assert not proposed(tick(mirror, 5)), "d hears a master"


@scenario
def what_is_not_wanted_is_not_kept() -> None:
    mirror = follow(found(2, 2, base=2, messages=5), "a", options=Options(incremental=False))
    assert changes(give(mirror, "a", Reset(2, 2, 9, ((2, 1),), 2, 7)), Restart)[0].have == ()


@scenario
def options_change_while_it_runs() -> None:
    mirror = member("c", found(2), links="ab")
    mirror.on_view(view(2, 2, "a", "abc"))
    feed(mirror, 0, (2, 1), src="b")
    drain(mirror)
    mirror.change_options(Options(star=True, filling=False))
    assert sent(drain(mirror), Attach, "a") and not mirror.filling.wanted
