"""A mirror, what it takes and passes on; and what is bounded."""

from __future__ import annotations

from leveret.replication.ring_frames import (
    Append,
    Attach,
    Blocks,
    Deny,
    Detach,
    Entry,
    Got,
    Numbers,
    Options,
    Poll,
    ProtocolError,
    Pulse,
    Reset,
    Send,
    Started,
    Truncate,
    Write,
)

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
    publish,
    say,
    sent,
    tick,
    view,
)
from .scenes import changes, scenario

# -- blocks --------------------------------------------------------------------------


@scenario
def blocks_are_taken_passed_on_and_reported() -> None:
    mirror = follow()
    give(mirror, "c", Attach(2, 2, (), 0))
    feed(mirror, 0, (0, 0), *blocks(2, 1, 3))
    effects = drain(mirror)
    assert changes(effects, Append) == [Append(blocks(2, 1, 3))]
    assert sent(effects, Blocks, "c")[-1] == Blocks(2, 2, 0, 0, 0, blocks(2, 1, 3))
    assert numbers(effects, "b")[-1][2:5] == (3, 3, True) and sent(effects, Numbers, "a")


@scenario
def an_unmatched_log_reports_nothing() -> None:
    mirror = follow(found(1, 1))
    mirror.on_peer_up("a")
    assert [entry[2:5] for entry in numbers(drain(mirror), "b")] == [(0, 0, False)]


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
    assert mirror.tail.end == 2 and mirror.tail.history == ((1, 1), (2, 2))


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
def a_master_tells_who_lags() -> None:
    master = lead("abc")
    say(master, "b", 1, 1)
    say(master, "c", 1, 1)
    publish(master)
    drain(master)
    say(master, "b", 2, 2)
    effects = tick(master, 6)
    assert sent(effects, Pulse, "c") and not sent(effects, Pulse, "b")


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
    assert 21 - 1_000 // 192 - 1 <= master.tail.base < 21
    master.on_peer_down("b")
    master.on_peer_down("c")
    publish(master)
    drain(master)
    assert master.tail.base == master.tail.end == 22, "nobody is there to get them"


@scenario
def one_too_slow_for_what_is_kept_is_turned_away_and_then_reset() -> None:
    master = lead("a", options=Options(retain_bytes=500, window_bytes=300))
    give(master, "c", Attach(2, 2, (), 0))
    publish(master, 30)
    effects = drain(master)
    publish(master)
    effects += drain(master)
    assert sent(effects, Deny, "c") and master.neighbours.child("c") is None
    reset = sent(give(master, "c", Attach(2, 2, ((2, 1),), 2)), Reset, "c")[0]
    assert (reset.cut, reset.known, reset.bound) == (master.confirmed, 2, master.messages)


# -- groups that are just being created ----------------------------------------------


@scenario
def a_new_group_writes_and_sends_no_block_before_the_first_of_its_queue() -> None:
    master = member("a", links="bc", born=True)
    master.on_view(view(1, 1, "a", "abc"))
    effects = drain(master)
    started = [one for one in effects if isinstance(one, Started)]
    assert [(one.epoch, one.number) for one in started] == [(1, 1)] and master.serving
    assert not any(isinstance(one, Write | Send) for one in effects) and not master.wants_tick
    assert not give(master, "b", Attach(1, 1, (), 0)) and not master.wants_tick
    publish(master)
    assert [one.number for frame in sent(drain(master), Blocks, "b") for one in frame.blocks] == [1, 2]
    assert master.wants_tick


@scenario
def a_new_group_gets_its_start_block_when_a_member_reports() -> None:
    """One that was restarted has to report, so something has happened that the first view does not say."""
    master = member("a", links="bc", born=True)
    master.on_view(view(1, 1, "a", "abc"))
    drain(master)
    give(master, "b", Attach(1, 1, (), 0))
    effects = give(master, "b", Numbers(1, (("b", Entry("b.7", 1, 0, 0, False)),)))
    assert changes(effects, Append) and [len(frame.blocks) for frame in sent(effects, Blocks, "b")] == [1]
    assert proposed(tick(master, 100)), "the copy in sync is gone"


@scenario
def a_new_group_gets_its_start_block_with_its_second_view() -> None:
    master = member("a", links="bc", born=True)
    master.on_view(view(1, 1, "a", "abc"))
    drain(master)
    master.on_view(view(2, 1, "a", "ab", ring="abc"))
    assert changes(drain(master), Append) and master.wants_tick


@scenario
def a_new_group_is_handed_over_without_a_block() -> None:
    master = member("a", links="bc", born=True)
    master.on_view(view(1, 1, "a", "abc"))
    drain(master)
    assert master.hand_over("c")
    effects = drain(master)
    assert proposed(effects) == [view(2, 2, "c", "abc", ring="abc")]
    assert not any(isinstance(one, Write) for one in effects)


@scenario
def a_mirror_without_blocks_rests_and_finds_another_feeder() -> None:
    mirror = member("c", links="ab", born=True)
    mirror.on_view(view(1, 1, "a", "abc"))
    assert sent(drain(mirror), Attach, "b") and not mirror.wants_tick
    mirror.on_peer_down("b")
    assert sent(drain(mirror), Attach, "a") and not mirror.wants_tick


@scenario
def a_restarted_mirror_without_blocks_reports_and_does_not_claim_to_hear_its_master() -> None:
    mirror = member("b", links="ac")
    mirror.on_view(view(1, 1, "a", "abc"))
    effects = drain(mirror)
    assert [entry[2:5] for entry in numbers(effects, "b")] == [(0, 0, False)] and not mirror.doubt.hears


@scenario
def a_newborn_mirror_reports_only_that_its_first_block_is_on_disk() -> None:
    mirror = member("b", links="ac", born=True)
    mirror.on_view(view(1, 1, "a", "abc"))
    mirror.on_peer_up("a")
    effects = drain(mirror)
    assert sent(effects, Attach, "a") and not sent(effects, Numbers)
    mirror.on_frame("a", Blocks(1, 1, 0, 0, 0, blocks(1, 1, 1)))
    assert not sent(drain(mirror, sync=False), Numbers)
    mirror.on_synced(mirror.written)
    assert [entry[2:5] for entry in numbers(drain(mirror), "b")] == [(1, 1, True)]


@scenario
def a_newborn_mirror_that_gets_messages_reports_them_at_once() -> None:
    mirror = member("b", links="ac", born=True)
    mirror.on_view(view(1, 1, "a", "abc"))
    drain(mirror)
    mirror.on_frame("a", Blocks(1, 1, 0, 0, 0, blocks(1, 1, 2)))
    assert [entry[2:5] for entry in numbers(drain(mirror, sync=False), "b")] == [(2, 0, True)]


@scenario
def a_newborn_mirror_takes_its_master_for_one_that_works_until_its_link_is_lost() -> None:
    mirror = member("b", links="ac", born=True)
    mirror.on_view(view(1, 1, "a", "abc"))
    drain(mirror)
    assert mirror.doubt.hears and not sent(tick(mirror, 20), Poll)
    mirror.on_peer_down("a")
    assert not mirror.doubt.hears and sent(drain(mirror), Poll, "c")


@scenario
def a_newborn_mirror_is_told_that_its_master_has_lost_its_disk() -> None:
    wiped, mirror = member("a", links="bc", disk="a.1"), member("b", links="ac", born=True)
    for one in (wiped, mirror):
        one.on_view(view(1, 1, "a", "abc"))
        drain(one)
    polls = sent(tick(wiped, 20), Poll, "b")
    assert mirror.doubt.hears and polls
    mirror.on_frame("a", polls[0])
    assert not mirror.doubt.hears and sent(drain(mirror), Poll, "c")


@scenario
def a_newborn_master_without_a_majority_says_so() -> None:
    master = member("a", links="bc", born=True)
    master.on_majority(False)
    master.on_view(view(1, 1, "a", "abc"))
    assert [frame.working for frame in sent(drain(master), Pulse)] == [False, False]
    other = member("a", links="bc", born=True)
    other.on_view(view(1, 1, "a", "abc"))
    assert not sent(drain(other), Pulse)


@scenario
def a_newborn_group_whose_master_was_lost_reports_as_any() -> None:
    mirror = member("b", links="ac", born=True)
    mirror.on_view(view(1, 1, "a", "abc"))
    drain(mirror)
    mirror.on_view(view(2, 2, "c", "bc", ring="bc"))
    assert numbers(drain(mirror), "b")
