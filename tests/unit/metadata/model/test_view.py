from __future__ import annotations

import pytest

from leveret.metadata.model.view import View, forced, misfit
from tests.unit.replication.lab import view


def test_order_is_master_then_in_sync_by_age_then_the_others() -> None:
    one = View(1, 1, "c", ("a", "b", "c", "d", "e"), (("d", "d.0"), ("c", "c.0"), ("a", "a.0")))
    assert one.order() == ("c", "d", "a", "b", "e")
    assert one.disk_of("d") == "d.0" and one.disk_of("b") is None


OLD = view(5, 3, "a", "ab", "abc", lossy=1)


@pytest.mark.parametrize(
    "new",
    [
        OLD._replace(version=6, in_sync=(("a", "a.0"),)),
        OLD._replace(version=6, in_sync=(*OLD.in_sync, ("c", "c.1"))),
        OLD._replace(version=6, ring=("a", "b")),
        OLD._replace(version=6, epoch=4, master="b"),
        OLD._replace(version=6, epoch=4, master="b", in_sync=(("b", "b.0"),)),
        OLD._replace(version=6, epoch=4),
        forced(OLD, "c", "c.0", complete=True),
        forced(OLD, "c", "c.0", complete=False),
    ],
)
def test_what_may_follow(new: View) -> None:
    assert misfit(OLD, new) is None


@pytest.mark.parametrize(
    "new",
    [
        OLD,
        OLD._replace(version=7),
        OLD._replace(version=6, master="b"),
        OLD._replace(version=6, lossy=3),
        OLD._replace(version=6, void=3),
        OLD._replace(version=6, in_sync=()),
        OLD._replace(version=6, in_sync=(("b", "b.0"),)),
        OLD._replace(version=6, in_sync=(("a", "a.0"), ("a", "a.1"))),
        OLD._replace(version=6, ring=("a", "b", "b")),
        OLD._replace(version=6, ring=("a", "c")),
        OLD._replace(version=6, epoch=5),
        OLD._replace(version=6, epoch=2),
        OLD._replace(version=6, epoch=4, master="c", in_sync=(("c", "c.0"),)),
        OLD._replace(version=6, epoch=4, in_sync=(*OLD.in_sync, ("c", "c.0"))),
        OLD._replace(version=6, epoch=4, lossy=0),
        OLD._replace(version=6, epoch=4, lossy=4),
        forced(OLD, "d", "d.0", complete=True),
    ],
)
def test_what_may_not_follow(new: View) -> None:
    assert misfit(OLD, new)


def test_the_first_view() -> None:
    assert misfit(None, view(1, 1, "a", "a", "ab")) is None
    assert misfit(None, view(1, 7, "a", "a", "ab")) is None, "it was mirrored before"
    assert misfit(None, view(1, 1, "a", "ab", "ab")) is None, "of a new queue everybody holds all there is"
    for wrong in (view(2, 1, "a", "a", "ab"), view(1, 0, "a", "a", "ab"), view(1, 2, "a", "ab", "ab")):
        assert misfit(None, wrong)
    assert misfit(None, view(1, 2, "a", "a", "ab", lossy=2))


def test_forced() -> None:
    assert forced(OLD, "c", "c.0", True) == View(6, 4, "c", OLD.ring, (("c", "c.0"),), 4, 0)
    assert forced(OLD, "c", "c.0", False) == View(6, 4, "c", OLD.ring, (("c", "c.0"),), 4, 4)


def test_a_group_goes_on_behind_the_last_one_of_its_queue() -> None:
    new = view(8, 4, "a", "a", "a")
    assert misfit(None, new, (7, 3)) is None
    assert misfit(None, new) and misfit(None, new, (6, 3)) and misfit(None, new, (7, 4))
