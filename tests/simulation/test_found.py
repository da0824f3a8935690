"""Seeds of mirrored clusters that once found something, and what that was."""

from __future__ import annotations

import pytest

from simulation.plan import STEPS, Plan, from_ranges
from simulation.world import run


@pytest.mark.parametrize(
    ("seed", "nodes", "varied"),
    [
        pytest.param(900043, 5, False, id="a consumer that was cancelled while its queue had no master came back"),
        pytest.param(920189, 3, False, id="a get was put again and again to what stood for its queue no longer"),
        pytest.param(920295, 5, False, id="a get went to the next master by way of the last, which then ended"),
        pytest.param(940438, 4, True, id="a consumer went while it waited for where its queue would be"),
        pytest.param(950009, 3, False, id="transient messages, stored at last, lay where another block seemed to be"),
        pytest.param(950062, 4, True, id="a queue came to a node, and went on before that node's clients knew of it"),
        pytest.param(61040, 2, False, id="a mirror asked again for what was on its way, and filled the link"),
        pytest.param(93124597, 3, True, id="marks of redelivered messages went when their contents were paged out"),
    ],
)
def test_what_was_found_stays_mended(seed: int, nodes: int, varied: bool) -> None:
    run(Plan(seed, nodes, STEPS, (), 0, mirrored=True, varied=varied))


@pytest.mark.parametrize(
    ("seed", "nodes", "mirrored"),
    [
        pytest.param(13, 1, False, id="the next message of a stream was one that a start had found in the log"),
        pytest.param(1027, 3, False, id="what was rejected, and had no letter when its node stopped, was new again"),
        pytest.param(970012, 2, False, id="two nodes that a queue had left waited for each other"),
    ],
)
def test_of_special_queues_too(seed: int, nodes: int, mirrored: bool) -> None:
    run(Plan(seed, nodes, STEPS, (), 0, mirrored, False, True, True))


def test_of_partitions_too() -> None:
    """A client that was about to log in when its node had to pause was let in."""
    run(Plan(980066, 4, STEPS, (), 0, mirrored=True, strategies=True))


def test_of_spools_too() -> None:
    """A master died before its first block, and the next one took again what had been in doubt before both."""
    run(Plan(831000106, 2, 120, (), 76, mirrored=True, spooled=True, strategies=True, rebalanced=True, drained=True,
             witnessed=True))  # fmt: skip


def test_of_publishes_through_a_former_master_too() -> None:
    """The queue came to its publisher's node, and later publishes entered it before those that the former master had
    taken in vain."""
    run(Plan(981000216, 2, 120, mirrored=True, varied=True, spooled=True, rebalanced=True, witnessed=True))


def test_of_what_came_as_a_queue_was_mirrored_too() -> None:
    """A mirror was filled while the first block, with a message that had come in the same turn, was not confirmed yet;
    it took that message for settled."""
    run(Plan(109, 2, 120, mirrored=True, spooled=True, witnessed=True))


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(981000209, id="it waits at the queue's node, and only there does its time begin"),
        pytest.param(991000032, id="it is put in while nothing is handed out, and its time begins then"),
    ],
)
def test_of_times_to_live_of_what_was_spooled_too(seed: int) -> None:
    run(Plan(seed, 2, 120, mirrored=True, featured=True, special=True, spooled=True, rebalanced=True, drained=True,
             paired=True))  # fmt: skip


def test_of_a_move_that_failed_too() -> None:
    """What was staged of a queue was thrown away when its target had a copy of it."""
    without = from_ranges("1-18,20-24,26-27,29,31-39,41-60")
    run(Plan(9, 2, 60, without, mirrored=True, featured=True, spooled=True, paired=True))


def test_of_delays_too() -> None:
    """A mirror returned, and got a block without the contents of messages that were due and had gone out meanwhile."""
    without = from_ranges("1-13,15,17-18,20-36,38-59")
    run(Plan(5000160, 2, 60, without, mirrored=True, featured=True, special=True, rebalanced=True, paired=True))


def test_of_priorities_too() -> None:
    """A mirror returned, and was not told what had been delivered of the messages that it still had."""
    run(Plan(810000180, 3, 120, mirrored=True, featured=True, special=True, spooled=True, rebalanced=True, ailing=True,
             drained=True))  # fmt: skip


def test_of_queues_that_move_too() -> None:
    """What had waited for room at a client's node came back unseen, and said that it had been returned."""
    run(Plan(114, 3, 40, mirrored=True, featured=True, special=True, rebalanced=True, ailing=True))


def test_of_what_comes_back_unseen_from_a_queue_with_priorities_that_moves() -> None:
    """It came behind later ones without a mark: the new master did not know that others had been given those."""
    run(Plan(940000038, 3, 120, mirrored=True, featured=True, strategies=True, rebalanced=True, ailing=True,
             drained=True))  # fmt: skip


def test_of_queues_with_priorities_that_move_too() -> None:
    """Messages were unacknowledged for ever: the new master had sorted some of them before it heard which are out."""
    run(Plan(862000158, 2, 120, from_ranges("1-34,36-106,108-113,115-120"), 1, mirrored=True, featured=True,
             spooled=True, rebalanced=True, ailing=True, drained=True, witnessed=True))  # fmt: skip


def test_of_a_cluster_without_mirrors_too() -> None:
    """A queue that rejects publishes moved with more than its limit, and its new node stopped."""
    run(Plan(517, 3, 120, (), 0, featured=True))


def test_of_failing_disks_too() -> None:
    """A node lost its power while it joined in its own place, and then told the others that they were no members."""
    run(Plan(521, 3, 120, (), 0, ailing=True))


def test_of_votes_that_are_not_there_too() -> None:
    """Three nodes served, and two of them had votes. One of the two lost its own, and only an operator could have
    helped the other: the simulation must not ask for more."""
    taken = {24, 51, 63}
    without = tuple(number for number in range(1, 121) if number not in taken)
    run(Plan(850000136, 3, 120, without, 1, mirrored=True, featured=True, rebalanced=True, ailing=True, drained=True))


@pytest.mark.parametrize("seed", [92820982, pytest.param(93820981, marks=pytest.mark.long)])
def test_a_run_ends_though_clocks_are_a_day_apart(seed: int) -> None:
    """It simulated whole days, until what one node had delayed was due by the clock of another."""
    world = run(Plan(seed, 3, STEPS, (), 0, featured=True, special=True, ailing=True))
    assert world.scheduler.now < 3_600
