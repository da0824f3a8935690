from __future__ import annotations

import pytest

from leveret.broker.routing.delayed_exchange import DELAY_MS_MAX, check_delayed_arguments, delay_ms, release
from leveret.protocol.frames import BODY, HEADER, HEADER_AT, frame
from leveret.protocol.properties import Properties, decode_content, encode
from leveret.protocol.tables import Field
from leveret.storage.format.queue_block import EXPIRES, PERSISTENT


@pytest.mark.parametrize(
    ("field", "delay"),
    [
        (None, 0),
        (Field("I", 5000), 5000),
        (Field("l", DELAY_MS_MAX), DELAY_MS_MAX),
        (Field("l", DELAY_MS_MAX + 1), 0),
        (Field("I", 0), 0),
        (Field("I", -5), 0),
        (Field("S", "5"), 0),
        (Field("t", True), 0),
        (Field("T", 5), 0),
        (Field("d", 5.0), 0),
    ],
)
def test_delay(field: Field | None, delay: int) -> None:
    assert delay_ms({} if field is None else {"x-delay": field}) == delay


@pytest.mark.parametrize("field", [None, Field("S", "x-none"), Field("I", 5), Field("S", "x-delayed-message")])
def test_what_it_is_otherwise(field: Field | None) -> None:
    arguments = {} if field is None else {"x-delayed-type": field}
    assert check_delayed_arguments(arguments, ("direct",)) is not None
    assert check_delayed_arguments({"x-delayed-type": Field("S", "direct")}, ("direct",)) is None


def content(properties: Properties) -> bytes:
    return frame(HEADER, 1, encode(properties, 1)) + frame(BODY, 1, b"b")


KEY = b"\x01x\x03a.b"


@pytest.mark.parametrize(
    ("delay", "field"),
    [(5, Field("I", -5)), ((1 << 31) - 1, Field("I", 1 - (1 << 31))), (DELAY_MS_MAX, Field("l", -DELAY_MS_MAX))],
)
def test_the_delay_is_negated(delay: int, field: Field) -> None:
    given = Properties(headers={"x-delay": Field("l", delay), "a": Field("t", True)}, delivery_mode=2, type="t")
    made, keys, kind = release(content(given), KEY)
    assert keys == ("a.b",) and kind == PERSISTENT
    assert made == content(Properties(headers={"x-delay": field, "a": Field("t", True)}, delivery_mode=2, type="t"))


def test_what_else_is_known_of_it() -> None:
    names = {"CC": Field("A", [Field("S", "c")]), "BCC": Field("A", [Field("S", "d")]), "x-delay": Field("I", 1)}
    made, keys, kind = release(content(Properties(headers=names, expiration="5")), KEY)
    assert keys == ("a.b", "c", "d") and kind == EXPIRES
    assert set(decode_content(made, HEADER_AT).headers or ()) == {"CC", "x-delay"}
