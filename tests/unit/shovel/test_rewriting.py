"""Properties and headers that a shovel sets."""

from __future__ import annotations

import pytest

from leveret.metadata.shovel.parameters import read_shovel
from leveret.protocol.frames import HEADER_AT, content, split
from leveret.protocol.properties import Properties, decode, decode_content, encode
from leveret.protocol.tables import Field, to_python
from leveret.shovel.rewriting import SHOVELLED_MAX, Rewriter, forward_table


def message(body: bytes = b"hello", **properties: object) -> bytes:
    return content(encode(Properties(**properties), len(body)), body, 0)  # type: ignore[arg-type]


def test_properties_are_set_and_others_stay() -> None:
    made = Rewriter({"app_id": "x", "delivery_mode": 2.0})(message(message_id="m", app_id="y"))
    found = decode_content(made, HEADER_AT)
    assert (found.app_id, found.delivery_mode, found.message_id) == ("x", 2, "m")
    assert split(made)[1] == b"hello"


def test_forward_headers_the_newest_first() -> None:
    shovel = read_shovel(
        {"src-uri": "amqp://", "src-exchange": "x", "src-exchange-key": "#", "dest-uri": "amqp://f", "dest-queue": "q"}
    )
    one = Rewriter({}, forward_table(shovel, "rabbit@a", "/", "s", "amqp://", "amqp://f"))
    other = Rewriter({}, {"shovel-name": Field("S", "t")})
    headers = decode(split(other(one(message(headers={"a": Field("l", 1)}))))[0]).headers
    assert headers is not None
    assert to_python(headers) == {
        "a": 1,
        "x-shovelled": [
            {"shovel-name": "t"},
            {
                "shovelled-by": "rabbit@a", "shovel-type": "dynamic", "shovel-name": "s", "shovel-vhost": "/",
                "src-uri": "amqp://", "dest-uri": "amqp://f", "src-exchange": "x", "src-exchange-key": "#",
                "dest-queue": "q",
            },
        ],
    }  # fmt: skip


def test_a_loop_makes_no_header_without_end() -> None:
    rewrite, made = Rewriter({}, {"shovel-name": Field("S", "t")}), message()
    for _ in range(SHOVELLED_MAX + 10):
        made = rewrite(made)
    headers = decode_content(made, HEADER_AT).headers
    assert headers is not None and len(headers["x-shovelled"].value) == SHOVELLED_MAX


def test_the_time() -> None:
    now = 5
    rewrite = Rewriter({}, None, lambda: now)
    assert decode_content(rewrite(message()), HEADER_AT).headers == {"x-shovelled-timestamp": Field("l", 5)}
    now = 6
    assert decode_content(rewrite(message()), HEADER_AT).headers == {"x-shovelled-timestamp": Field("l", 6)}


def test_equal_headers_are_made_once_and_bodies_stay_their_own() -> None:
    rewrite = Rewriter({"app_id": "x"})
    for body in (b"one..", b"two..", b"longer body"):
        made = rewrite(message(body, message_id="m"))
        assert split(made)[1] == body and decode_content(made, HEADER_AT).app_id == "x"


def test_a_header_that_cannot_be_read() -> None:
    broken = b"\x02\x00\x01\x00\x00\x00\x0e" + b"\x00\x3c" + bytes(10) + b"\xff\xff" + b"\xce"
    with pytest.raises(ValueError):
        Rewriter({"app_id": "x"})(broken)
