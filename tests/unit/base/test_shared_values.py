"""Values that many objects share, and what stands for empty parts."""

from __future__ import annotations

import pytest

from leveret.base.shared_values import NO_ARRAY, NO_DEQUE, NO_DICT, NO_LIST, NO_SET, shared


def test_equal_values_become_one() -> None:
    one, other = tuple(["a", "b"]), tuple(["a", "b"])
    assert one is not other and shared(one) is shared(other)


def test_nothing_is_put_into_what_all_share() -> None:
    with pytest.raises(AttributeError):
        NO_DEQUE.append(1)
    with pytest.raises(AttributeError):
        NO_LIST.append(1)
    with pytest.raises(AttributeError):
        NO_ARRAY.append(1)
    with pytest.raises(TypeError):
        NO_DICT["a"] = 1
    assert not NO_DEQUE and not NO_LIST and not NO_ARRAY and not NO_DICT and not NO_SET
