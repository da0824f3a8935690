"""Headers that tell where a message has been."""

from __future__ import annotations

import pytest

from leveret.federation.headers import ExchangeHeaders, HeaderWriter, QueueHeaders
from leveret.protocol import frames
from leveret.protocol.frames import HEADER_AT
from leveret.protocol.origins import source_of, take_origin, with_origins
from leveret.protocol.properties import Properties, decode_content, encode
from leveret.protocol.tables import Field, Table

ROUTE = b"\x01e\x03key"


def content(headers: Table | None = None, body: bytes = b"body", **more: str) -> bytes:
    return frames.content(encode(Properties(headers=headers, **more), len(body)), body, 4096, 1)  # type: ignore[arg-type]


def read(made: bytes | None) -> Properties:
    assert made is not None
    return decode_content(made, HEADER_AT)


def of_exchange(max_hops: int = 1, header_max: int = 4096, trusts: bool = False) -> ExchangeHeaders:
    return ExchangeHeaders("amqp://far", "x", ("up", "/"), ("down", "/"), max_hops, trusts, header_max)


def hop(cluster: str, vhost: str = "/") -> Field:
    return Field("F", {"cluster-name": Field("S", cluster), "vhost": Field("S", vhost)})


def test_the_newest_hop_is_first() -> None:
    write = of_exchange(max_hops=3)
    made = write(content({"a": Field("I", 1), "x-received-from": Field("A", [hop("first")])}), True, ROUTE)
    headers = read(made).headers
    assert headers is not None and list(headers) == ["a", "x-received-from"]
    newest, oldest = headers["x-received-from"].value
    assert oldest == hop("first")
    assert newest.value == {
        "uri": Field("S", "amqp://far"), "exchange": Field("S", "x"), "redelivered": Field("t", True),
        "cluster-name": Field("S", "up"), "vhost": Field("S", "/"),
    }  # fmt: skip


def test_what_must_not_go_on() -> None:
    write = of_exchange(max_hops=2)
    assert write(content({"x-received-from": Field("A", [hop("down")])}), False, ROUTE) is None
    assert write(content({"x-received-from": Field("A", [hop("a"), hop("b")])}), False, ROUTE) is None
    assert write(content({"x-received-from": Field("A", [hop("down", "other")])}), False, ROUTE) is not None
    forged = write(content({"x-received-from": Field("I", 5)}), False, ROUTE)
    assert len((read(forged).headers or {})["x-received-from"].value) == 1
    assert of_exchange(header_max=300)(content({"long": Field("S", "x" * 200)}), False, ROUTE) is None


@pytest.mark.parametrize("write", [of_exchange(), QueueHeaders("amqp://far", "q", False, 4096)])
def test_equal_headers_are_made_once_and_bodies_stay(write: HeaderWriter) -> None:
    for body in (b"one", b"two", b""):
        for redelivered in (False, False, True):
            made = write(content(user_id="ann", body=body), redelivered, ROUTE)
            properties = read(made)
            assert made is not None and properties.user_id is None and frames.split(made)[1] == body
            (entry,) = (properties.headers or {})["x-received-from"].value
            assert entry.value["redelivered"] == Field("t", redelivered)
    assert read(of_exchange(trusts=True)(content(user_id="ann"), False, ROUTE)).user_id == "ann"


def test_origins_stay_in_front() -> None:
    write = of_exchange()
    source = source_of(b"0" * 32, 7, 1)
    for number in (5, 6):
        (with_origin,) = with_origins([content(body=b"b")], source, number)
        made = write(with_origin, False, ROUTE)
        assert made is not None
        origin = take_origin(made)
        assert (origin.source, origin.number) == (source, number)
        assert list(read(origin.content).headers or {}) == ["x-received-from"]


def test_a_malformed_message() -> None:
    good = bytearray(content({"a": Field("S", "text")}))
    good[HEADER_AT + 14 + 6] = ord("?")  # The type of the field.
    with pytest.raises(ValueError):
        of_exchange()(bytes(good), False, ROUTE)


def test_visits_of_queues() -> None:
    first, second = QueueHeaders("amqp://a", "q", False, 4096), QueueHeaders("amqp://b", "q", False, 4096)
    made = first(content({"CC": Field("A", [Field("S", "k")])}), False, ROUTE)
    headers = read(made).headers or {}
    assert list(headers) == ["x-original-cc", "x-original-exchange", "x-original-routing-key", "x-received-from"]
    assert (headers["x-original-exchange"].value, headers["x-original-routing-key"].value) == ("e", "key")
    for _ in range(3):
        for write in (second, first):
            assert made is not None
            made = write(made, False, b"\x00\x01q")
    entries = (read(made).headers or {})["x-received-from"].value
    assert [(one.value["uri"].value, one.value["visit-count"].value) for one in entries] == [
        ("amqp://a", 4),
        ("amqp://b", 3),
    ]
    assert (read(made).headers or {})["x-original-exchange"].value == "e"
    visit = Field("F", {**first.place, "visit-count": Field("S", "x")})
    forged = {"x-received-from": Field("A", [visit, Field("I", 1)])}
    assert len((read(first(content(forged), False, ROUTE)).headers or {})["x-received-from"].value) == 2
