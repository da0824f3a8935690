"""Which node runs which shovel: epochs, and what is refused of a worker whose time is over."""

from __future__ import annotations

import pytest

from leveret.base.json_values import Json
from leveret.metadata import assignments
from leveret.metadata.command_codec import decode_command, encode_command
from leveret.metadata.diff import events_between
from leveret.metadata.model import commands as c
from leveret.metadata.shovel.commands import AssignRow, AssignWork, PauseWork, ReportWork, RestartWork
from leveret.metadata.shovel.events import AssignmentChanged
from leveret.metadata.shovel.records import SHOVEL, Assignment, WorkKey
from leveret.metadata.store import Applied, Metadata

KEY = WorkKey(SHOVEL, "/", "s")
VALUE: Json = {"src-uri": "amqp://"}


@pytest.fixture
def store() -> Metadata:
    store = Metadata()
    store.apply(c.AddVhost("/"))
    store.apply(c.SetParameter(*KEY, VALUE, "ann"))
    return store


def one(store: Metadata) -> Assignment:
    return store.assignments[KEY]


def assign(store: Metadata, node: str, epoch: int | None = None) -> Applied:
    row = AssignRow(*KEY, one(store).epoch if epoch is None else epoch, node)
    return store.apply(AssignWork((row,)))


def test_a_shovel_waits_for_the_leader_to_choose(store: Metadata) -> None:
    assert one(store) == Assignment(*KEY, 1, "", "ann")
    assert assign(store, "a").events == (AssignmentChanged(*KEY),)
    assert (one(store).node, one(store).epoch) == ("a", 2)


def test_of_two_leaders_that_choose_the_second_is_refused(store: Metadata) -> None:
    assign(store, "a", 1)
    assert assign(store, "b", 1).events == ()
    assert one(store).node == "a"


def test_another_value_is_a_new_epoch_at_the_same_node(store: Metadata) -> None:
    assign(store, "a")
    assert store.apply(c.SetParameter(*KEY, VALUE, "ann")).events == ()
    store.apply(c.SetParameter(*KEY, {"src-uri": "amqp://b"}, "ann"))
    assert (one(store).node, one(store).epoch) == ("a", 3)
    store.apply(c.SetParameter(*KEY, {"src-uri": "amqp://b"}, "bob"))
    assert (one(store).user, one(store).epoch) == ("bob", 4)


def test_pause_restart_and_resume(store: Metadata) -> None:
    assign(store, "a")
    store.apply(RestartWork(*KEY))
    assert (one(store).node, one(store).epoch) == ("a", 3)
    store.apply(PauseWork(*KEY, True))
    assert (one(store).node, one(store).paused) == ("", True)
    assert store.apply(PauseWork(*KEY, True)).events == ()
    assert store.apply(RestartWork(*KEY)).events == ()
    assert assign(store, "b").events == ()
    store.apply(PauseWork(*KEY, False))
    assert (one(store).node, one(store).paused) == ("", False)
    for command in (PauseWork(SHOVEL, "/", "no", True), RestartWork(SHOVEL, "/", "no")):
        refused = store.apply(command).refused
        assert refused is not None and refused.code == 404


def test_only_the_present_worker_reports_and_ends(store: Metadata) -> None:
    assign(store, "a")
    assert store.apply(ReportWork(*KEY, 2, 10)).refused is None
    assert (one(store).forwarded, one(store).epoch) == (10, 2)
    assign(store, "b")
    assert one(store).forwarded == 10
    for stale in (ReportWork(*KEY, 2, 99), ReportWork(*KEY, 2, 99, done=True)):
        assert store.apply(stale).refused is not None
    assert one(store).forwarded == 10
    store.apply(ReportWork(*KEY, 3, 12, done=True))
    assert KEY not in store.assignments and KEY not in store.parameters


def test_what_was_deleted_stays_deleted(store: Metadata) -> None:
    assign(store, "a")
    store.apply(c.ClearParameter(*KEY))
    row = AssignRow(*KEY, 2, "b")
    assert store.apply(AssignWork((row,))).events == ()
    assert store.apply(ReportWork(*KEY, 2, 1)).refused is not None
    assert not store.assignments
    store.apply(c.SetParameter(*KEY, VALUE))
    assert one(store).epoch == 3


def test_a_vhost_takes_its_shovels_along(store: Metadata) -> None:
    assert AssignmentChanged(*KEY) in store.apply(c.DeleteVhost("/")).events
    assert not store.assignments


def test_nodes_that_start_anew_are_forgotten_or_renamed(store: Metadata) -> None:
    assign(store, "a")
    store.apply(c.RenameNode("a", "b"))
    assert one(store).node == "b"
    store.apply(c.NodeStarted("b", run="2"))
    assert one(store).node == ""
    assign(store, "c")
    store.apply(c.ForgetNode("c"))
    assert one(store).node == ""


def test_bounds(store: Metadata, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignments, "COUNT_MAX", 1)
    for command in (
        c.SetParameter(SHOVEL, "/", "t", VALUE),
        c.SetParameter(SHOVEL, "/", "", VALUE),
        c.SetParameter(SHOVEL, "/", "x" * 256, VALUE),
        c.SetParameter(*KEY, {"src-uri": "x" * 100_000}),
    ):
        assert store.apply(command).refused is not None
    assert store.apply(c.SetParameter(*KEY, {"src-uri": "y"})).refused is None


def test_snapshot_and_difference(store: Metadata) -> None:
    assign(store, "a")
    fresh = Metadata()
    fresh.restore(store.snapshot())
    assert (fresh.assignments, fresh.last_assignment) == (store.assignments, 2)
    assert events_between(fresh, store) == ()
    assign(store, "b")
    assert events_between(fresh, store) == (AssignmentChanged(*KEY),)


@pytest.mark.parametrize(
    "command",
    [
        AssignWork((AssignRow(*KEY, 3, "n"),)),
        PauseWork(*KEY, True),
        RestartWork(*KEY),
        ReportWork(*KEY, 3, 4, True),
        c.SetParameter(*KEY, VALUE, "ann"),
    ],
)
def test_commands_as_bytes(command: c.Command) -> None:
    assert decode_command(encode_command(command)) == command
