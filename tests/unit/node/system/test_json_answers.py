"""What makes no sense costs nobody but who sent it."""

from __future__ import annotations

import pytest

from leveret.node.system.json_answers import read_object

NESTED = b"[" * 100_000


@pytest.mark.parametrize("data", [b"", b"[]", b"5", b"\xff", NESTED, b'{"a":' + NESTED])
def test_what_is_no_object(data: bytes) -> None:
    with pytest.raises(ValueError):
        read_object(data)
