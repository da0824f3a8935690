from __future__ import annotations

import pytest

from leveret.base.packing import BadMessage
from leveret.raft.membership import (
    MEMBERS_MAX,
    AddLearner,
    BadChange,
    Change,
    Member,
    Membership,
    Promote,
    Remove,
    Update,
    decode_membership,
    encode_membership,
)

A, B, C, D = (Member(letter, f"node {letter}", f"{letter}:1") for letter in "abcd")
US = Membership((A, C), (B,))


def test_changes() -> None:
    assert US.changed(AddLearner(D)) == Membership((A, C), (B, D))
    assert US.changed(Promote("b")) == Membership((A, B, C))
    assert US.changed(Remove("b")) == Membership((A, C))
    assert US.changed(Remove("a")) == Membership((C,), (B,))
    moved = B._replace(address="elsewhere:1", priority=3)
    assert US.changed(Update(moved)) == Membership((A, C), (moved,))
    assert US.changed(Update(moved)).get("b") == moved


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (AddLearner(A), "a is a member already"),
        (AddLearner(D._replace(name="node a")), "a is a member named node a; remove that incarnation first"),
        (AddLearner(D._replace(id="")), "is no id"),
        (AddLearner(D._replace(id="x y")), "is no id"),
        (AddLearner(D._replace(address="")), "1 to 255 bytes"),
        (AddLearner(D._replace(name="x" * 256)), "1 to 255 bytes"),
        (AddLearner(D._replace(priority=256)), "priority"),
        (Promote("a"), "a is not a learner"),
        (Remove("d"), "d is not a member"),
        (Update(D), "d is not a member"),
        (Update(B._replace(name="node a")), "another member is named node a"),
    ],
)
def test_changes_that_make_no_sense(change: Change, text: str) -> None:
    with pytest.raises(BadChange, match=text):
        US.changed(change)


def test_the_last_voter_stays() -> None:
    with pytest.raises(BadChange, match="last voter"):
        Membership((A,), (B,)).changed(Remove("a"))


def test_not_more_than_the_format_can_hold() -> None:
    many = Membership((A,), tuple(Member(f"m{at:03}", f"m{at}", "h:1") for at in range(MEMBERS_MAX - 1)))
    assert decode_membership(encode_membership(many)) == many
    with pytest.raises(BadChange, match="255 members already"):
        many.changed(AddLearner(D))


def test_majorities() -> None:
    for size, least in ((1, 1), (2, 2), (3, 2), (4, 3), (5, 3)):
        membership = Membership(tuple(Member(str(at), str(at), "h:1") for at in range(size)))
        assert [membership.is_majority(count) for count in (least - 1, least)] == [False, True]


def test_reading_back() -> None:
    data = encode_membership(US)
    assert decode_membership(data) == US
    for end in range(len(data)):
        with pytest.raises(BadMessage):
            decode_membership(data[:end])


@pytest.mark.parametrize(
    "wrong", [Membership((C, A)), Membership((A,), (A,)), Membership((A, B._replace(name="node a")))]
)
def test_what_nobody_would_write_is_refused(wrong: Membership) -> None:
    with pytest.raises(BadMessage):
        decode_membership(encode_membership(wrong))
