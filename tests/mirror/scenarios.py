"""Scenes for one member each: what it must do, and above all what it must not. Mutations are tried on all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from leveret.log.block import Run
from leveret.mirror.frames import (
    Append,
    Attach,
    Blocks,
    Complete,
    Confirmed,
    Deny,
    Detach,
    Effect,
    Fetch,
    Fill,
    Got,
    HandOverDue,
    Leave,
    Newer,
    Numbers,
    Options,
    Piece,
    Poll,
    ProtocolError,
    Pulse,
    Read,
    Refresh,
    Reset,
    Restart,
    Resumed,
    Standing,
    Started,
    Stopped,
    Truncate,
    Write,
)
from leveret.mirror.ring import Member

from .lab import (
    applied,
    block,
    blocks,
    confirmed,
    drain,
    feed,
    follow,
    found,
    give,
    lead,
    member,
    numbers,
    proposed,
    publish,
    say,
    sent,
    tick,
    view,
)

SCENARIOS: list[Callable[[], None]] = []


def scenario(call: Callable[[], None]) -> Callable[[], None]:
    SCENARIOS.append(call)
    return call


def changes(effects: list[Effect], kind: type) -> list[Any]:
    return [one.change for one in effects if isinstance(one, Write) and isinstance(one.change, kind)]


# -- confirming ----------------------------------------------------------------------


@scenario
def everybody_in_sync_has_it_on_disk() -> None:
    master = lead("abc")
    say(master, "b", 1, 1)
    assert confirmed(say(master, "c", 1, 1)) == 1
    publish(master)
    drain(master)
    assert not confirmed(say(master, "b", 2, 2))
    assert confirmed(say(master, "c", 2, 1)) < 2, "received is not durable"
    assert confirmed(say(master, "c", 2, 2)) == 2


@scenario
def ones_own_copy_counts_like_any_other() -> None:
    master = lead()
    say(master, "b", 1, 1)
    publish(master)
    drain(master, sync=False)
    assert confirmed(say(master, "b", 2, 2, sync=False)) < 2
    assert confirmed(drain(master)) == 0
    master.on_synced(master.written)
    assert confirmed(drain(master)) == 2


@scenario
def nothing_is_confirmed_before_the_start_block() -> None:
    master = lead("ab", found(1, 1, 1))
    assert master.tail.end == 4
    assert not confirmed(say(master, "b", 3, 3)), "older blocks are confirmed with the start block only"
    assert confirmed(say(master, "b", 4, 4)) == 4


@scenario
def a_dead_member_counts_until_its_removal_is_committed() -> None:
    master = lead()
    say(master, "b", 1, 1)
    master.on_peer_down("b")
    publish(master)
    effects = tick(master, 4)
    assert not confirmed(effects)
    assert [one.in_sync for one in proposed(effects)][:1] == [(("a", "a.0"),)]
    master.on_view(view(3, 2, "a", "a"))
    assert confirmed(drain(master)) == 2


@scenario
def a_member_that_may_have_been_added_counts() -> None:
    master = lead()
    say(master, "b", 1, 1)
    assert proposed(say(master, "c", 1, 1))[0].in_sync == (("a", "a.0"), ("b", "b.0"), ("c", "c.0"))
    publish(master)
    drain(master)
    assert not confirmed(say(master, "b", 2, 2)), "c may be in sync by now, and be promoted"
    tick(master, 40)
    assert not confirmed(say(master, "b", 2, 2)), "and that does not change with time"


@scenario
def a_wiped_disk_does_not_count() -> None:
    master = lead()
    effects = say(master, "b", 1, 1, disk="b.1", complete=False)
    assert not confirmed(effects)
    assert proposed(tick(master, 3))[0].in_sync == (("a", "a.0"),)


@scenario
def old_words_do_not_replace_newer_ones() -> None:
    master = lead("a")
    master.on_frame("b", Numbers(2, (("b", member("b").entry()._replace(stamp=9, received=1, durable=1)),)))
    late = member("b").entry()._replace(stamp=3, received=1, durable=1, complete=True)
    master.on_frame("c", Numbers(2, (("b", late),)))
    assert not proposed(drain(master)), "that it was complete is an older word of it"


@scenario
def transient_messages_are_confirmed_when_received() -> None:
    master = lead()
    say(master, "b", 1, 1)
    publish(master, kind=0)
    drain(master)
    effects = say(master, "b", 2, 1)
    assert [one for one in effects if isinstance(one, Confirmed)] == [Confirmed(2, 1, 2)]


@scenario
def asynchronous_confirms_wait_for_the_own_disk_only() -> None:
    master = lead(options=Options(asynchronous=True))
    say(master, "b", 1, 1)
    publish(master)
    assert not confirmed(drain(master, sync=False)[1:])
    master.on_synced(master.written)
    effects = drain(master)
    assert confirmed(effects) == 2 and applied(effects) == []


# -- the in-sync set -----------------------------------------------------------------


@scenario
def a_joiner_is_complete_and_has_the_start_block_and_what_is_confirmed() -> None:
    master = lead("a", found(*[1] * 8))
    assert not proposed(say(master, "c", 9, 9, complete=False))
    assert not proposed(say(master, "c", 9, 8)), "without the start block it may take another log for this one"
    assert proposed(say(master, "c", 9, 9))[0].in_sync == (("a", "a.0"), ("c", "c.0"))


@scenario
def confirms_wait_for_one_who_has_nearly_caught_up() -> None:
    master = lead("a", options=Options(patience=3))
    publish(master, 5)
    tick(master, 3)
    publish(master, 5)
    drain(master, sync=False)
    say(master, "c", 8, 1, sync=False)
    assert not confirmed(drain(master)), "it has what the log held two ticks ago"
    effects = say(master, "c", 11, 11)
    assert proposed(effects) and confirmed(effects) == 11


@scenario
def a_joiner_is_waited_for_only_so_long() -> None:
    master = lead("a", options=Options(patience=3))
    publish(master)
    drain(master)
    say(master, "c", 2, 1)
    publish(master)
    assert not confirmed(drain(master))
    assert confirmed(tick(master, 5)) == 3


@scenario
def a_silent_member_without_progress_is_removed() -> None:
    master = lead(options=Options(slow=5))
    say(master, "b", 1, 1)
    publish(master, 3)
    assert not proposed(tick(master, 4))
    say(master, "b", 2, 2)
    assert not proposed(tick(master, 5)), "there was progress"
    assert proposed(tick(master, 3))[0].in_sync == (("a", "a.0"),)


@scenario
def at_rest_nobody_is_removed() -> None:
    master = lead()
    say(master, "b", 1, 1)
    master.on_peer_down("b")
    master.on_peer_down("c")
    assert not proposed(tick(master, 100))
    assert not master.wants_tick


@scenario
def a_failed_disk_leaves() -> None:
    master = lead("abc")
    one = proposed(give(master, "b", Leave(2)))[0]
    assert one.in_sync == (("a", "a.0"), ("c", "c.0")) and one.ring == ("a", "c")
    mirror = follow(found(2))
    mirror.on_disk_failed()
    effects = drain(mirror, sync=False)
    assert sent(effects, Leave, "a") and sent(effects, Leave, "c")
    feed(mirror, 0, (2, 1), block(2, 2))
    mirror.on_synced(9)
    assert not drain(mirror)


@scenario
def a_master_whose_sync_fails_leads_no_longer() -> None:
    master = lead()
    master.on_disk_failed()
    effects = drain(master, sync=False)
    assert Stopped(2) in effects and sent(effects, Leave, "b") and not master.submit(block(2, 2))
    mirror = follow(found(2), "abc")
    give(mirror, "a", Pulse(2, True, 1))
    effects = give(mirror, "a", Leave(2)) + give(mirror, "c", Standing(2, "c.0", 2, 1, False))
    assert proposed(effects)[0] == view(3, 3, "b", "bc", "bc")


@scenario
def a_ring_is_changed_by_its_master() -> None:
    master = lead("abc")
    say(master, "b", 1, 1)
    say(master, "c", 1, 1)
    assert not master.change_ring(("b", "c"))
    assert master.change_ring(("a", "c", "d"))
    assert proposed(drain(master)) == [view(3, 2, "a", "ac", "acd")]
    assert not master.change_ring(("a",)), "one proposal at a time"


# -- handing over --------------------------------------------------------------------


@scenario
def a_hand_over_waits_until_everybody_has_everything() -> None:
    master = lead("abc")
    say(master, "b", 1, 1)
    say(master, "c", 1, 1)
    publish(master)
    assert master.hand_over("b") and not master.serving and not master.submit(block(2, 3))
    drain(master)
    assert not proposed(say(master, "b", 2, 2)), "c lacks the last block"
    assert proposed(say(master, "c", 2, 2)) == [view(3, 3, "b", "abc")]
    master.on_view(view(3, 3, "b", "abc"))
    assert Stopped(2) in drain(master)


@scenario
def a_hand_over_is_given_up() -> None:
    master = lead("abc")
    say(master, "b", 1, 1)
    assert master.hand_over("b")
    drain(master)
    assert Resumed(2) in tick(master, 20) and master.serving


@scenario
def nobody_is_handed_what_left_the_in_sync_set() -> None:
    master = lead("abc")
    say(master, "b", 1, 1)
    say(master, "c", 1, 1)
    publish(master)
    assert master.hand_over("b")
    drain(master)
    master.on_view(view(3, 2, "a", "ac"))
    assert Resumed(2) in drain(master)
    effects = say(master, "b", 2, 1) + say(master, "c", 2, 2)
    assert "b" not in [one.master for one in proposed(effects)]


@scenario
def a_master_with_a_slow_disk_asks_to_be_relieved() -> None:
    master = lead("abc", options=Options(own_slow=3))
    say(master, "b", 1, 1)
    say(master, "c", 1, 1)
    publish(master, 2)
    drain(master, sync=False)
    say(master, "b", 3, 3, sync=False)
    say(master, "c", 3, 3, sync=False)
    assert HandOverDue("b") in tick(master, 8, sync=False)
    assert master.hand_over("b")
    assert proposed(drain(master, sync=False)) == [view(3, 3, "b", "abc")], "its own copy is not waited for"


# -- epochs --------------------------------------------------------------------------


@scenario
def a_new_master_keeps_its_whole_log() -> None:
    mirror = member("b", found(1, 1, 1, base=1))
    mirror.on_view(view(2, 1, "a"))
    mirror.on_view(view(3, 2, "b"))
    started = next(one for one in drain(mirror) if isinstance(one, Started))
    assert (started.epoch, started.number, [one.number for one in started.tail]) == (2, 4, [2, 3])
    assert mirror.tail.end == 4 and mirror.tail.last_epoch == 2


@scenario
def a_restarted_master_does_not_resume_its_epoch() -> None:
    master = member("a", found(2, 2))
    master.on_view(view(2, 2, "a"))
    effects = drain(master)
    assert master.master is None and not any(isinstance(one, Started) for one in effects)
    effects = tick(master) + give(master, "b", Standing(2, "b.0", 2, 3, False))
    assert [one.vacant for one in sent(effects, Poll)][:1] == [True]
    assert proposed(effects) == [view(3, 3, "b")], "b has more of what it had sent"


@scenario
def a_new_group_is_led_at_once_by_who_made_it() -> None:
    master = member("a", born=True)
    master.on_view(view(1, 1, "a", "a"))
    assert any(isinstance(one, Started) for one in drain(master)) and master.serving


@scenario
def a_wiped_disk_does_not_lead() -> None:
    master = member("a", disk="a.1")
    master.on_view(view(2, 2, "b"))
    master.on_view(view(3, 3, "a"))
    assert not any(isinstance(one, Started) for one in drain(master)) and master.master is None


@scenario
def frames_of_an_older_epoch_are_refused() -> None:
    mirror = follow()
    effects = give(mirror, "a", Blocks(1, 1, 0, 0, 0, blocks(1, 1, 1)))
    assert mirror.tail.end == 0 and sent(effects, Newer, "a") == [Newer(2)]


@scenario
def frames_of_a_newer_epoch_are_dropped_and_the_view_looked_up() -> None:
    mirror = follow()
    effects = give(mirror, "a", Blocks(3, 3, 0, 0, 0, blocks(3, 1, 1)))
    assert mirror.tail.end == 0 and Refresh() in effects
    assert Refresh() in give(mirror, "a", Newer(3)) and Refresh() not in give(mirror, "a", Newer(2))


@scenario
def an_attach_that_came_too_early_is_kept() -> None:
    mirror = follow()
    give(mirror, "c", Attach(3, 3, (), 0))
    mirror.on_view(view(3, 3, "a"))
    drain(mirror)
    feed(mirror, 0, (0, 0), block(3, 1))
    assert sent(drain(mirror), Blocks, "c")[-1].blocks == (block(3, 1),)


@scenario
def an_older_view_changes_nothing() -> None:
    mirror = follow()
    mirror.on_view(view(1, 1, "b"))
    assert mirror.view == view(2, 2) and mirror.master is None


@scenario
def who_left_the_ring_is_told() -> None:
    mirror = follow(found(2))
    mirror.on_view(view(3, 2, "a", "a", "ac"))
    effects = drain(mirror)
    assert [type(one).__name__ for one in effects] == ["Left"] and not mirror.wants_tick


# -- blocks --------------------------------------------------------------------------


@scenario
def blocks_are_taken_passed_on_and_reported() -> None:
    mirror = follow()
    give(mirror, "c", Attach(2, 2, (), 0))
    feed(mirror, 0, (0, 0), *blocks(2, 1, 3))
    effects = drain(mirror)
    assert changes(effects, Append) == [Append(blocks(2, 1, 3))]
    assert sent(effects, Blocks, "c")[-1] == Blocks(2, 2, 0, 0, 0, blocks(2, 1, 3))
    assert numbers(effects, "b")[-1][2:] == (3, 3, True) and sent(effects, Numbers, "a")


@scenario
def an_unmatched_log_reports_nothing() -> None:
    mirror = follow(found(1, 1))
    mirror.on_peer_up("a")
    assert [entry[2:] for entry in numbers(drain(mirror), "b")] == [(0, 0, False)]


@scenario
def an_unmatched_log_feeds_nobody() -> None:
    mirror = follow(found(1, 1))
    effects = give(mirror, "c", Attach(2, 2, (), 0))
    assert not sent(effects, Blocks) and not sent(effects, Reset)


@scenario
def blocks_that_are_not_confirmed_are_not_applied() -> None:
    mirror = follow()
    feed(mirror, 1, (0, 0), *blocks(2, 1, 3))
    assert applied(drain(mirror)) == [1]
    feed(mirror, 9, (2, 3))
    assert applied(drain(mirror)) == [2, 3]
    feed(mirror, 9, (2, 1), *blocks(2, 2, 3))
    assert applied(drain(mirror)) == [], "none is applied twice"


@scenario
def a_gap_is_not_jumped_over() -> None:
    mirror = follow(found(2))
    feed(mirror, 0, (2, 3), block(2, 4))
    effects = drain(mirror)
    assert mirror.tail.end == 1 and sent(effects, Attach, "a")[-1].end == 1
    feed(mirror, 0, (2, 4), block(2, 5))
    assert not sent(drain(mirror), Attach), "once for many frames"
    tick(mirror)
    feed(mirror, 0, (2, 5))
    assert sent(drain(mirror), Attach, "a"), "an empty frame shows a gap as well"


@scenario
def a_shorter_neighbour_truncates_nothing() -> None:
    mirror = follow(found(1, 2, 2))
    feed(mirror, 0, (1, 1), block(2, 2))
    drain(mirror)
    assert mirror.tail.end == 3


@scenario
def a_conflict_truncates() -> None:
    mirror = follow(found(1, 1, 1))
    feed(mirror, 0, (1, 1), *blocks(2, 2, 2))
    effects = drain(mirror)
    assert changes(effects, Truncate) == [Truncate(1)]
    assert mirror.tail.end == 2 and mirror.tail.history == [(1, 1), (2, 2)]


@scenario
def a_conflict_with_what_is_confirmed_is_an_error() -> None:
    mirror = follow(found(1, 1, 1, base=2))
    try:
        feed(mirror, 0, (1, 1), block(2, 2))
    except ProtocolError:
        return
    raise AssertionError("a confirmed block was replaced")


@scenario
def a_sync_of_what_was_cut_off_counts_for_nothing() -> None:
    mirror = follow(epoch=1)
    feed(mirror, 0, (0, 0), *blocks(1, 1, 3))
    mirror.take()
    before = mirror.written
    mirror.on_view(view(3, 2))
    feed(mirror, 0, (1, 1), *blocks(2, 2, 3), version=3)
    mirror.take()
    mirror.on_synced(before)
    assert mirror.durable == 1
    mirror.on_synced(mirror.written)
    assert mirror.durable == 3


@scenario
def what_was_cut_off_is_durable_no_longer() -> None:
    mirror = follow(found(1, 1, 1))
    feed(mirror, 0, (1, 1), block(2, 2))
    mirror.take()
    assert mirror.durable == 1


@scenario
def children_are_fed_again_from_where_the_log_was_cut() -> None:
    mirror = follow(epoch=1)
    feed(mirror, 0, (0, 0), *blocks(1, 1, 3))
    give(mirror, "c", Attach(1, 2, ((1, 1),), 3))
    mirror.truncate(1)
    mirror.append((block(1, 2),))
    assert sent(drain(mirror), Blocks, "c")[-1] == Blocks(1, 2, 0, 1, 1, (block(1, 2),))


@scenario
def numbers_go_through_the_feed_if_the_master_is_out_of_reach() -> None:
    mirror = member("c", links="b")
    mirror.on_view(view(2, 2, "a", "abc"))
    mirror.on_frame("b", Blocks(2, 2, 0, 0, 0, blocks(2, 1, 2)))
    effects = drain(mirror)
    assert sent(effects, Numbers, "b")
    middle = follow(found(2, 2), "abc")
    give(middle, "c", Attach(2, 2, ((2, 1),), 2))
    effects = give(middle, "c", sent(effects, Numbers, "b")[-1])
    assert numbers(effects, "c")[-1].durable == 2 and sent(effects, Numbers, "a")


@scenario
def the_next_on_the_left_feeds_after_a_death() -> None:
    mirror = member("c", found(2), links="ab")
    mirror.on_view(view(2, 2, "a", "abc"))
    assert sent(drain(mirror), Attach, "b")
    feed(mirror, 0, (2, 1), src="b")
    drain(mirror)
    assert mirror.neighbours.feed == "b"
    mirror.on_peer_down("b")
    assert sent(drain(mirror), Attach, "a")
    feed(mirror, 0, (2, 1), block(2, 2), src="a")
    drain(mirror)
    mirror.on_peer_up("b")
    assert sent(drain(mirror), Attach, "b")
    feed(mirror, 0, (2, 2), src="b")
    assert sent(drain(mirror), Detach, "a") and mirror.neighbours.feed == "b"


@scenario
def one_who_is_starved_turns_to_another() -> None:
    mirror = member("c", found(2), links="ab")
    mirror.on_view(view(2, 2, "a", "abc"))
    feed(mirror, 0, (2, 1), src="b")
    drain(mirror)
    give(mirror, "a", Pulse(2, True, 4))
    effects = give(mirror, "a", Pulse(2, True, 5))
    effects += tick(mirror, 4)
    assert sent(effects, Attach, "a"), "b has nothing to give"


@scenario
def a_silent_left_neighbour_is_passed_over() -> None:
    mirror = member("c", links="ab")
    mirror.on_view(view(2, 2, "a", "abc"))
    assert sent(drain(mirror), Attach, "b")
    assert sent(tick(mirror, 4), Attach, "a")


@scenario
def a_star_is_fed_by_its_master() -> None:
    mirror = member("c", options=Options(star=True))
    mirror.on_view(view(2, 2, "a", "abc"))
    effects = drain(mirror)
    assert sent(effects, Attach, "a") and not sent(effects, Attach, "b")


@scenario
def what_is_confirmed_is_told_with_the_tick_at_the_latest() -> None:
    master = lead()
    master.on_peer_down("c")
    give(master, "b", Attach(2, 2, (), 0))
    assert not sent(say(master, "b", 1, 1), Blocks)
    assert master.wants_tick
    tick(master, 2)
    publish(master)
    drain(master)
    assert not sent(say(master, "b", 2, 2), Blocks) and master.wants_tick
    assert sent(tick(master), Blocks, "b")[-1] == Blocks(2, 2, 2, 2, 2, ())
    tick(master, 2)
    assert not master.wants_tick


# -- bounds --------------------------------------------------------------------------


@scenario
def a_neighbour_is_sent_no_more_than_its_window() -> None:
    master = lead(options=Options(window_bytes=1_000, frame_bytes=500))
    give(master, "b", Attach(2, 2, (), 0))
    say(master, "b", 1, 1)
    publish(master, 20)
    first = [one.number for frame in sent(drain(master), Blocks, "b") for one in frame.blocks]
    assert first == list(range(2, 2 + len(first))) and 4 <= len(first) <= 6
    assert not sent(say(master, "b", first[-1], 1), Blocks), "received is not durable"
    more = [one.number for frame in sent(say(master, "b", first[-1], first[0]), Blocks, "b") for one in frame.blocks]
    assert more == [first[-1] + 1]
    assert not sent(give(master, "b", Got(2, 1)), Blocks), "an older word"


@scenario
def a_block_larger_than_the_window_goes_alone() -> None:
    master = lead(options=Options(window_bytes=100))
    give(master, "b", Attach(2, 2, (), 0))
    say(master, "b", 1, 1)
    publish(master, 2, size=1_000)
    assert [len(frame.blocks) for frame in sent(drain(master), Blocks, "b")] == [1]
    assert [frame.blocks[0].number for frame in sent(say(master, "b", 2, 2), Blocks, "b")] == [3]


@scenario
def a_mirror_tells_its_feed_what_its_disk_has() -> None:
    mirror = member("c", options=Options(window_bytes=1_000))
    mirror.on_view(view(2, 2, "a", "abc"))
    feed(mirror, 0, (0, 0), *blocks(2, 1, 6), src="b")
    assert sent(drain(mirror), Got, "b") == [Got(2, 6)]


@scenario
def publishers_wait_when_too_much_is_unconfirmed() -> None:
    master = lead(options=Options(unconfirmed_bytes_max=1_000))
    say(master, "b", 1, 1)
    assert not master.is_crowded
    publish(master, 8)
    drain(master)
    assert master.is_crowded
    say(master, "b", 8, 8)
    assert not master.is_crowded


@scenario
def only_what_is_confirmed_is_forgotten() -> None:
    master = lead(options=Options(retain_bytes=0))
    say(master, "b", 1, 1)
    publish(master, 5)
    drain(master)
    say(master, "c", 6, 6, complete=False)
    assert master.tail.base == 1, "b lacks it"
    say(master, "b", 4, 4)
    assert master.tail.base == master.confirmed == 4 and len(master.tail.upto(5, 6)) == 2


@scenario
def blocks_are_kept_for_a_while_for_those_who_lack_them() -> None:
    master = lead("a", options=Options(retain_bytes=1_000))
    publish(master, 4)
    drain(master)
    assert master.tail.base == 0 and master.confirmed == 5
    publish(master, 16)
    drain(master)
    assert 21 - 1_000 // 192 - 1 <= master.tail.base <= 21


@scenario
def one_too_slow_for_what_is_kept_is_turned_away_and_then_reset() -> None:
    master = lead("a", options=Options(retain_bytes=500, window_bytes=300))
    give(master, "c", Attach(2, 2, (), 0))
    publish(master, 30)
    effects = drain(master)
    publish(master)
    effects += drain(master)
    assert sent(effects, Deny, "c") and "c" not in master.neighbours.children
    reset = sent(give(master, "c", Attach(2, 2, ((2, 1),), 2)), Reset, "c")[0]
    assert (reset.cut, reset.known, reset.bound) == (master.confirmed, 2, master.messages)


# -- promotion -----------------------------------------------------------------------


def bereaved(log: int = 2) -> Member:
    """b, in sync with c, whose master is gone."""
    mirror = follow(found(*[2] * log), "abc")
    give(mirror, "a", Pulse(2, True, log))
    mirror.on_peer_down("a")
    return mirror


@scenario
def those_in_sync_are_asked_when_the_master_is_gone() -> None:
    mirror = bereaved()
    effects = drain(mirror)
    assert sent(effects, Poll, "c") == [Poll(2, False, Standing(2, "b.0", 2, 2, False))] and not proposed(effects)
    assert proposed(give(mirror, "c", Standing(2, "c.0", 2, 2, False))) == [view(3, 3, "b", "bc")]


@scenario
def the_most_complete_is_promoted_then_the_oldest() -> None:
    mirror = bereaved()
    drain(mirror)
    assert proposed(give(mirror, "c", Standing(2, "c.0", 2, 3, False)))[0].master == "c"
    mirror = bereaved()
    drain(mirror)
    assert proposed(give(mirror, "c", Standing(2, "c.0", 1, 9, False)))[0].master == "b", "an older epoch's log"


@scenario
def a_poll_says_how_its_sender_stands() -> None:
    mirror = bereaved()
    drain(mirror)
    effects = give(mirror, "c", Poll(2, False, Standing(2, "c.0", 2, 3, False)))
    assert sent(effects, Standing, "c") and proposed(effects)[0].master == "c"


@scenario
def a_broken_link_deposes_nobody() -> None:
    mirror = bereaved()
    drain(mirror)
    assert not proposed(give(mirror, "c", Standing(2, "c.0", 2, 2, True)))
    assert not proposed(tick(mirror, 2)) and not mirror.doubt.hears
    assert mirror.wants_tick


@scenario
def who_hears_the_master_says_so() -> None:
    mirror = follow(found(2), "abc")
    give(mirror, "a", Pulse(2, True, 1))
    effects = give(mirror, "c", Poll(2, False, Standing(2, "c.0", 2, 1, False)))
    assert sent(effects, Standing, "c")[0].hears and not proposed(effects)
    effects = give(mirror, "a", Poll(2, True, Standing(2, "a.0", 2, 1, False)))
    assert not sent(effects, Standing, "a")[0].hears, "the master itself says that its place is vacant"


@scenario
def what_others_hear_is_not_hearing() -> None:
    mirror = bereaved()
    drain(mirror)
    give(mirror, "c", Standing(2, "c.0", 2, 2, True))
    assert not sent(give(mirror, "c", Poll(2, False, Standing(2, "c.0", 2, 2, False))), Standing)[0].hears


@scenario
def one_who_is_not_in_sync_does_not_stand() -> None:
    mirror = follow(found(2, 2), "ac")
    mirror.on_peer_down("a")
    mirror.on_peer_down("c")
    effects = drain(mirror) + tick(mirror, 20)
    assert not proposed(effects) and not sent(effects, Poll)


@scenario
def a_wiped_member_is_not_promoted() -> None:
    mirror = bereaved()
    drain(mirror)
    one = proposed(give(mirror, "c", Standing(2, "c.1", 9, 99, False)))[0]
    assert one.master == "b" and one.in_sync == (("b", "b.0"),)


@scenario
def a_master_without_the_majority_steps_back() -> None:
    master = lead()
    master.on_majority(False)
    effects = drain(master)
    assert sent(effects, Pulse, "b") == [Pulse(2, False, 1)] and not master.serving
    assert not sent(give(master, "b", Poll(2, False, Standing(2, "b.0", 2, 1, False))), Standing)[0].hears
    mirror = follow(found(2), "ab")
    give(mirror, "a", Pulse(2, True, 1))
    effects = give(mirror, "a", Pulse(2, False, 1)) + give(mirror, "a", Standing(2, "a.0", 2, 1, False))
    assert proposed(effects)


@scenario
def a_master_says_that_it_is_there() -> None:
    master = lead()
    master.on_peer_down("b")
    master.on_peer_up("b")
    assert sent(drain(master), Pulse, "b") == [Pulse(2, True, 1)]


@scenario
def a_master_that_is_never_heard_is_doubted() -> None:
    mirror = follow(found(2), "abc")
    assert sent(tick(mirror, 10), Poll, "a"), "its link is up, but nobody there leads"


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
    effects = give(mirror, "a", Piece(2, 5, 0, 2, ((1, 2),), (run_of(1, b"x", b"y"),), 5), sync=False)
    assert [one.live for one in changes(effects, Fill)] == [((1, 2),)]
    assert not sent(effects, Fetch), "the next one when this is on disk"
    mirror.on_synced(mirror.written)
    assert sent(drain(mirror), Fetch)[0].after == 2
    effects = give(mirror, "a", Piece(2, 5, 2, 3, (), (), 5))
    assert changes(effects, Complete) and numbers(effects, "b")[-1][2:] == (6, 6, True)


@scenario
def cut_and_tail_must_meet() -> None:
    mirror = hollow()
    drain(mirror)
    give(mirror, "a", Piece(2, 5, 0, 3, (), (), 7))
    assert not mirror.complete, "the piece was read later than what has come here"
    feed(mirror, 7, (2, 6), block(2, 7))
    drain(mirror)
    assert mirror.complete


@scenario
def complete_is_said_when_the_disk_knows() -> None:
    mirror = hollow()
    drain(mirror)
    effects = give(mirror, "a", Piece(2, 5, 0, 3, (), (), 5), sync=False)
    mirror.on_peer_up("a")
    effects += drain(mirror, sync=False)
    assert mirror.complete and not any(entry.complete or entry.durable for entry in numbers(effects, "b"))


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
    assert not changes(give(mirror, "a", Piece(2, 4, 0, 3, (), (), 5)), Fill)
    assert not changes(give(mirror, "a", Piece(2, 5, 1, 3, (), (), 5)), Fill)


@scenario
def a_returning_member_keeps_what_it_has() -> None:
    log = found(2, 2)._replace(blocks=(block(2, 1, 1, (b"x", b"y")), block(2, 2, 3, (b"z",))))
    mirror = follow(log, "a")
    effects = give(mirror, "a", Reset(2, 2, 9, ((2, 1),), 2, 7))
    restart = changes(effects, Restart)[0]
    assert restart == Restart(9, ((2, 1),), 7, ((1, 3),)) and applied(effects) == [1, 2]


@scenario
def what_was_fetched_before_an_interruption_is_kept_too() -> None:
    mirror = hollow(cut=5, bound=10)
    drain(mirror)
    give(mirror, "a", Piece(2, 5, 0, 4, ((1, 4),), (run_of(1, b"x", b"y", b"z", b"w"),), 5))
    feed(mirror, 7, (2, 6), block(2, 7, 11, (b"n",)))
    drain(mirror)
    restart = changes(give(mirror, "a", Reset(2, 2, 20, ((2, 1),), 7, 15)), Restart)[0]
    assert restart == Restart(20, ((2, 1),), 15, ((1, 4), (11, 11)))


@scenario
def what_belongs_to_another_log_is_not_kept() -> None:
    mirror = hollow(cut=5, bound=10)
    drain(mirror)
    restart = changes(give(mirror, "a", Reset(2, 2, 20, ((2, 1),), 3, 15)), Restart)[0]
    assert restart == Restart(20, ((2, 1),), 15, ()), "its cut is not in what both logs have"


@scenario
def one_who_believes_itself_in_sync_looks_up_the_view_before_it_drops_anything() -> None:
    mirror = follow(found(2))
    effects = give(mirror, "a", Reset(3, 3, 9, ((2, 1),), 1, 5)) + give(mirror, "a", Reset(2, 3, 9, ((2, 1),), 1, 5))
    assert Refresh() in effects and mirror.tail.end == 1 and not changes(effects, Restart)


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
    assert sent(drain(source), Piece, "c") == [Piece(2, 2, 0, 4, ((1, 1),), (run_of(1, b"x"),), 2)]


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
    effects = give(mirror, "a", Piece(2, 5, 0, 2, ((1, 2),), (run_of(1, b"xxx", b"yyy"),), 5))
    assert not sent(effects, Fetch)
    assert sent(tick(mirror), Fetch)[0].after == 2


@scenario
def filling_that_is_switched_off_asks_for_no_contents() -> None:
    mirror = follow(None, "a", options=Options(filling=False))
    assert sent(give(mirror, "a", Reset(2, 2, 5, ((2, 1),), 0, 3)), Fetch)[0].bytes_max == 0
    feed(mirror, 6, (2, 5), block(2, 6))
    drain(mirror)
    assert not changes(give(mirror, "a", Piece(2, 5, 0, 0, (), (), 5)), Fill)
    assert sent(tick(mirror, 14), Fetch)[0].bytes_max == 0
    give(mirror, "a", Piece(2, 5, 0, 3, (), (), 6))
    assert mirror.complete, "all that it lacked was consumed"
    other = hollow(filling=False)
    drain(other)
    tick(other, 14)
    other.filling.start()
    assert sent(drain(other) + tick(other, 14), Fetch)[-1].bytes_max > 0


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
    assert changes(drain(mirror), Restart) == [Restart(0, (), 0, ())]


@scenario
def confirmed_blocks_give_way_to_a_forced_promotion() -> None:
    mirror = follow(found(2, 2, 2, base=3), "a")
    mirror.on_view(view(3, 3, "c", "c", lossy=3))
    drain(mirror)
    mirror.on_frame("c", Blocks(3, 3, 0, 2, 1, blocks(3, 2, 2)))
    effects = drain(mirror)
    assert changes(effects, Restart) == [Restart(0, (), 0, ())] and sent(effects, Attach, "c")[-1].end == 0


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
