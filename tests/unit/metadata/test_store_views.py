"""Views of mirrored queues in the metadata."""

from __future__ import annotations

import pytest

from leveret.metadata.model import commands as c
from leveret.metadata.model import events as e
from leveret.metadata.model.records import QueueSpec
from leveret.metadata.model.view import View
from leveret.metadata.store import Metadata

FIRST = View(1, 1, "a", ("a", "b", "c"), (("a", "A"), ("b", "B")))


@pytest.fixture
def metadata() -> Metadata:
    metadata = Metadata()
    metadata.apply(c.AddVhost("/"))
    applied = metadata.apply(c.DeclareQueue("/", "q", view=FIRST))
    assert applied.refused is None
    return metadata


def queue(metadata: Metadata) -> QueueSpec:
    return metadata.queues["/", "q"]


def change(metadata: Metadata, view: View) -> list[type]:
    applied = metadata.apply(c.ChangeView("/", "q", queue(metadata).id, view))
    assert applied.refused is None, applied.refused
    return [type(event) for event in applied.events]


def test_the_master_is_the_home(metadata: Metadata) -> None:
    assert queue(metadata).node == "a"
    assert queue(metadata).view == FIRST


def test_a_view_that_cannot_be_a_first_one() -> None:
    metadata = Metadata()
    metadata.apply(c.AddVhost("/"))
    applied = metadata.apply(c.DeclareQueue("/", "q", view=FIRST._replace(version=2)))
    assert applied.refused is not None and "a group begins with" in applied.refused.text
    assert not metadata.queues


def test_a_change_and_a_promotion(metadata: Metadata) -> None:
    grown = FIRST._replace(version=2, in_sync=(*FIRST.in_sync, ("c", "C")))
    assert change(metadata, grown) == [e.ViewChanged]
    promoted = grown._replace(version=3, epoch=2, master="b", in_sync=grown.in_sync[1:])
    assert change(metadata, promoted) == [e.ViewChanged, e.QueueMoved]
    assert queue(metadata).node == "b"


def test_a_late_proposal_is_refused(metadata: Metadata) -> None:
    change(metadata, FIRST._replace(version=2, ring=("a", "b")))
    applied = metadata.apply(c.ChangeView("/", "q", queue(metadata).id, FIRST._replace(version=2)))
    assert applied.refused is not None and not applied.events
    missing = metadata.apply(c.ChangeView("/", "q", 77, FIRST._replace(version=3)))
    assert missing.refused is not None and missing.refused.code == 404


def test_a_copy_that_left_is_not_in_sync_when_its_member_is_back(metadata: Metadata) -> None:
    change(metadata, FIRST._replace(version=2, ring=("a", "c"), in_sync=(("a", "A"),)))
    back = FIRST._replace(version=3, in_sync=(("a", "A"),))
    change(metadata, back)
    assert queue(metadata).joined == {"a": 1, "b": 3, "c": 1}
    old = back._replace(version=4, in_sync=(("a", "A"), ("b", "B")))
    applied = metadata.apply(c.ChangeView("/", "q", queue(metadata).id, old))
    assert applied.refused is not None and "has left the ring" in applied.refused.text
    assert change(metadata, old._replace(in_sync=(("a", "A"), ("b", "B+3")))) == [e.ViewChanged]


def test_a_queue_becomes_mirrored_where_it_is(metadata: Metadata) -> None:
    metadata.apply(c.DeclareQueue("/", "plain", node="b"))
    number = metadata.queues["/", "plain"].id
    assert metadata.apply(c.ChangeView("/", "plain", number, FIRST)).refused is not None
    there = FIRST._replace(master="b", in_sync=(("b", "B"),))
    assert metadata.apply(c.ChangeView("/", "plain", number, there)).refused is None
    assert metadata.queues["/", "plain"].view == there


def test_a_transient_queue_outlives_its_master_if_a_mirror_has_it() -> None:
    metadata = Metadata()
    metadata.apply(c.AddVhost("/"))
    metadata.apply(c.DeclareQueue("/", "kept", durable=False, view=FIRST))
    metadata.apply(c.DeclareQueue("/", "lost", durable=False, view=FIRST._replace(in_sync=(("a", "A"),))))
    metadata.apply(c.NodeStarted("a"))
    assert [name for _, name in metadata.queues] == ["kept"]


def test_forgetting_a_mirror(metadata: Metadata) -> None:
    metadata.apply(c.ForgetNode("b"))
    view = queue(metadata).view
    assert view is not None and (view.version, view.epoch, view.ring, view.in_sync) == (2, 1, ("a", "c"), (("a", "A"),))


def test_forgetting_the_master(metadata: Metadata) -> None:
    applied = metadata.apply(c.ForgetNode("a"))
    view = queue(metadata).view
    assert view is not None and (view.epoch, view.master, view.in_sync) == (2, "b", (("b", "B"),))
    assert [type(event) for event in applied.events] == [e.ViewChanged, e.QueueMoved]
    metadata.apply(c.ForgetNode("b"))
    assert not metadata.queues


def test_renaming(metadata: Metadata) -> None:
    metadata.apply(c.RenameNode("a", "z"))
    view = queue(metadata).view
    assert view is not None and (view.master, view.ring, view.in_sync[0]) == ("z", ("z", "b", "c"), ("z", "A"))
    assert queue(metadata).node == "z"


def test_it_moves_only_by_its_view(metadata: Metadata) -> None:
    applied = metadata.apply(c.MoveQueue("/", "q", queue(metadata).id, "a", "b", ""))
    assert applied.refused is not None and "is mirrored" in applied.refused.text


def test_a_snapshot_has_views(metadata: Metadata) -> None:
    other = Metadata()
    other.restore(metadata.snapshot())
    assert other.queues == metadata.queues


def test_a_view_ends_when_nobody_else_is_in_it(metadata: Metadata) -> None:
    def end(version: int) -> bool:
        applied = metadata.apply(c.EndView("/", "q", queue(metadata).id, version))
        if applied.refused is None:
            assert [type(event) for event in applied.events] == [e.ViewChanged]
        return applied.refused is None

    assert not end(1), "it has mirrors"
    alone = FIRST._replace(version=2, epoch=2, master="b", in_sync=FIRST.in_sync[1:])
    change(metadata, alone)
    change(metadata, alone._replace(version=3, ring=("b",)))
    assert not end(2), "another view came first"
    assert end(3) and not end(3)
    plain = queue(metadata)
    assert (plain.node, plain.view, plain.joined) == ("b", None, {})
    again = Metadata()
    again.restore(metadata.snapshot())
    assert queue(again) == plain


def test_a_next_view_goes_on_behind_the_last(metadata: Metadata) -> None:
    change(metadata, FIRST._replace(version=2, ring=("a",), in_sync=FIRST.in_sync[:1]))
    metadata.apply(c.EndView("/", "q", queue(metadata).id, 2))

    def begins(version: int, epoch: int) -> bool:
        view = View(version, epoch, "a", ("a",), (("a", f"A+{version}"),))
        return metadata.apply(c.ChangeView("/", "q", queue(metadata).id, view)).refused is None

    assert not begins(1, 2), "what was said about a ring of before could be taken for this one's"
    assert not begins(3, 2), "it was made from the view that has ended"
    assert not begins(4, 1), "copies of before would be taken for ones of this ring"
    assert begins(4, 2)
    assert queue(metadata).joined == {"a": 4}
