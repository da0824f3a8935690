"""A master, what it confirms and whom it counts; and who leads next."""

from __future__ import annotations

from leveret.replication.member import Member
from leveret.replication.ring_frames import (
    Attach,
    Blocks,
    Confirmed,
    Detach,
    HandOverDue,
    Leave,
    Newer,
    Numbers,
    Options,
    Poll,
    Pulse,
    Resumed,
    Standing,
    Started,
    Stopped,
)

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
    proposed,
    publish,
    say,
    sent,
    tick,
    view,
)
from .scenes import scenario

# -- leaving -------------------------------------------------------------------------


@scenario
def a_master_that_must_go_names_the_best_that_is_not_in_sync() -> None:
    master = lead("a")
    say(master, "b", 1, 1, complete=False)
    say(master, "c", 0, 0, complete=True)
    assert master.step_down()
    assert proposed(drain(master)) == [view(3, 3, "c", "c", lossy=3)]
    master = lead("a")
    assert not master.step_down(), "nobody has said what it has"
    assert master.may_step_down_soon()
    say(master, "b", 1, 1, complete=False)
    assert master.step_down()
    assert proposed(drain(master)) == [view(3, 3, "b", "b", lossy=3, void=3)]
    master = lead("ab")
    say(master, "b", 1, 1)
    assert not master.step_down(), "b can be handed over to"
    assert not master.may_step_down_soon()


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
    effects = say(master, "b", 3, 3)
    assert not confirmed(effects) and not applied(effects), "older blocks are confirmed with the start block only"
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
def an_unknown_outcome_is_made_known() -> None:
    master = lead()
    say(master, "b", 1, 1)
    assert len(proposed(say(master, "c", 1, 1))[0].in_sync) == 3
    say(master, "c", 0, 0, complete=False, disk="c.1")
    effects = tick(master, 6)
    assert proposed(effects)[0] == view(3, 2, "a", "ab"), "either this is committed, or the addition was"
    publish(master)
    drain(master)
    say(master, "b", 2, 2)
    master.on_view(view(3, 2, "a", "ab"))
    drain(master)
    assert confirmed(tick(master, 20)) == 2


@scenario
def a_wiped_disk_does_not_count() -> None:
    master = lead()
    effects = say(master, "b", 1, 1, disk="b.1", complete=False)
    assert not confirmed(effects)
    assert proposed(tick(master, 3))[0].in_sync == (("a", "a.0"),)


@scenario
def a_copy_that_has_left_does_not_count() -> None:
    """It was sent away and is wanted again, and heard of neither: it will forget what it has when it does."""
    master = lead()
    master.joined = {"a": 1, "b": 1, "c": 4}
    say(master, "b", 1, 1)
    assert not proposed(say(master, "c", 1, 1))
    assert proposed(say(master, "c", 1, 1, disk="c.0+4"))[0].in_sync[-1] == ("c", "c.0+4")


@scenario
def what_a_copy_said_before_it_left_does_not_count() -> None:
    master = lead()
    say(master, "b", 1, 1)
    say(master, "c", 1, 1, complete=False)
    master.joined = {"a": 1, "b": 1, "c": 4}
    master.on_view(view(4, 2, "a", "ab"))
    assert master.master is not None and "c" not in master.master.table and "b" in master.master.table


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
def a_wiped_disk_is_replaced_even_at_rest() -> None:
    master = lead("abc")
    say(master, "b", 1, 1)
    say(master, "c", 1, 1)
    tick(master, 3)
    assert not master.wants_tick
    say(master, "c", 1, 1, disk="c.1")
    assert master.wants_tick
    assert proposed(tick(master, 3))[0] == view(3, 2, "a", "ab")
    master.on_view(view(3, 2, "a", "ab"))
    assert proposed(drain(master))[0].in_sync == (("a", "a.0"), ("b", "b.0"), ("c", "c.1"))


@scenario
def one_who_was_waited_for_in_vain_comes_in_at_rest() -> None:
    master = lead("a", options=Options(patience=2))
    publish(master)
    drain(master)
    say(master, "c", 2, 1)
    tick(master, 4)
    assert confirmed(tick(master)) <= 2 and not master.master.joining  # type: ignore[union-attr]
    say(master, "c", 2, 2)
    assert master.wants_tick
    assert proposed(tick(master, 12))[0].in_sync == (("a", "a.0"), ("c", "c.0"))


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
    effects = give(mirror, "a", Leave(2)) + give(mirror, "c", Standing(2, "c.0", 2, 1, False, True))
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
    assert not proposed(say(master, "c", 2, 1)), "and then its disk does"
    assert proposed(say(master, "c", 2, 2)) == [view(3, 3, "b", "abc")]
    master.on_view(view(3, 3, "b", "abc"))
    assert Stopped(2, handed=True) in drain(master)


@scenario
def a_hasty_hand_over_does_not_wait_for_disks() -> None:
    master = lead("abc")
    say(master, "b", 1, 1)
    say(master, "c", 1, 1)
    publish(master)
    assert master.hand_over("b", hasty=True)
    drain(master, sync=False)
    assert not proposed(say(master, "b", 2, 1, sync=False)), "c lacks the last block"
    assert proposed(say(master, "c", 2, 1, sync=False)) == [view(3, 3, "b", "abc")]


@scenario
def a_master_that_is_replaced_has_handed_nothing_over() -> None:
    master = lead("abc")
    assert master.hand_over("b")
    drain(master)
    master.on_view(view(3, 3, "c", "bc"))
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
    say(master, "c", 2, 2, sync=False)
    assert HandOverDue("b") in tick(master, 8, sync=False)
    assert master.hand_over("b")
    assert not proposed(drain(master, sync=False)), "c lacks the last block"
    effects = say(master, "c", 3, 3, sync=False)
    assert proposed(effects) == [view(3, 3, "b", "abc")], "its own copy is not waited for"


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
    effects = tick(master) + give(master, "b", Standing(2, "b.0", 2, 3, False, True))
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
    assert mirror.tail.end == 0 and not effects


@scenario
def frames_of_a_newer_epoch_are_dropped() -> None:
    mirror = follow()
    effects = give(mirror, "a", Blocks(3, 3, 0, 0, 0, blocks(3, 1, 1)))
    assert mirror.tail.end == 0 and not effects and not give(mirror, "a", Newer(3))


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
    feed(mirror, 0, (2, 1), block(2, 2), version=3)
    effects = drain(mirror)
    assert sent(effects, Detach, "a") and mirror.tail.end == 1 and not sent(effects, Numbers)


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
    assert sent(effects, Poll, "c") == [Poll(2, False, Standing(2, "b.0", 2, 2, False, True))] and not proposed(effects)
    assert proposed(give(mirror, "c", Standing(2, "c.0", 2, 2, False, True))) == [view(3, 3, "b", "bc")]


@scenario
def who_is_cut_off_from_the_majority_proposes_nobody() -> None:
    """It would wait until it is not, and then depose a master that served all the time."""
    mirror = follow(found(2, 2))
    mirror.on_majority(False)
    mirror.on_peer_down("a")
    mirror.on_peer_down("c")
    assert not proposed(tick(mirror, 20))
    mirror.on_majority(True)
    assert proposed(tick(mirror, 20))[0].master == "b"


@scenario
def the_most_complete_is_promoted_then_the_oldest() -> None:
    mirror = bereaved()
    drain(mirror)
    assert proposed(give(mirror, "c", Standing(2, "c.0", 2, 3, False, True)))[0].master == "c"
    mirror = bereaved()
    drain(mirror)
    assert proposed(give(mirror, "c", Standing(2, "c.0", 1, 9, False, True)))[0].master == "b", "an older epoch's log"
    mirror = bereaved()
    drain(mirror)
    cut_off = Standing(2, "c.0", 2, 3, False, True, majority=False)
    assert proposed(give(mirror, "c", cut_off))[0].master == "b", "who reaches no majority would not serve"


@scenario
def a_poll_says_how_its_sender_stands() -> None:
    mirror = bereaved()
    drain(mirror)
    effects = give(mirror, "c", Poll(2, False, Standing(2, "c.0", 2, 3, False, True)))
    assert sent(effects, Standing, "c") and proposed(effects)[0].master == "c"


@scenario
def a_broken_link_deposes_nobody() -> None:
    mirror = bereaved()
    drain(mirror)
    assert not proposed(give(mirror, "c", Standing(2, "c.0", 2, 2, True, True)))
    assert not proposed(tick(mirror, 2)) and not mirror.doubt.hears
    assert mirror.wants_tick


@scenario
def who_hears_the_master_says_so() -> None:
    mirror = follow(found(2), "abc")
    give(mirror, "a", Pulse(2, True, 1))
    effects = give(mirror, "c", Poll(2, False, Standing(2, "c.0", 2, 1, False, True)))
    assert sent(effects, Standing, "c")[0].hears and not proposed(effects)
    effects = give(mirror, "a", Poll(2, True, Standing(2, "a.0", 2, 1, False, True)))
    assert not sent(effects, Standing, "a")[0].hears, "the master itself says that its place is vacant"


@scenario
def what_others_hear_is_not_hearing() -> None:
    mirror = follow(found(2, 2), "abc")
    give(mirror, "c", Standing(2, "c.0", 2, 2, True, True))
    assert not sent(give(mirror, "c", Poll(2, False, Standing(2, "c.0", 2, 2, False, True))), Standing)[0].hears


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
    one = proposed(give(mirror, "c", Standing(2, "c.1", 9, 99, False, True)))[0]
    assert one.master == "b" and one.in_sync == (("b", "b.0"),)


@scenario
def a_master_without_the_majority_steps_back() -> None:
    master = lead()
    master.on_majority(False)
    effects = drain(master)
    assert sent(effects, Pulse, "b") == [Pulse(2, False, 1)] and not master.serving
    assert not sent(give(master, "b", Poll(2, False, Standing(2, "b.0", 2, 1, False, True))), Standing)[0].hears
    mirror = follow(found(2), "ab")
    give(mirror, "a", Pulse(2, True, 1))
    effects = give(mirror, "a", Pulse(2, False, 1)) + give(mirror, "a", Standing(2, "a.0", 2, 1, False, True))
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
