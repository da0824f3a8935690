"""What clients say of themselves is kept once for all that say the same, and shown as they said it."""

from __future__ import annotations

import math

from leveret.protocol.tables import Field, Table
from leveret.sessions.amqp.client_properties import SHARED_BYTES_MAX, SHARED_MAX, ClientProperties, _decoded


def table(name: Field | None = None, product: str = "Bunny") -> Table:
    found = {"product": Field("S", product)}
    if name is not None:
        found["connection_name"] = name
    return {**found, "capabilities": Field("F", {"basic.nack": Field("t", True)})}


def test_clients_with_names_of_their_own_share_all_else() -> None:
    one, other = (ClientProperties(table(Field("S", name))) for name in ("one", "other"))
    assert one._others is other._others
    for properties, name in ((one, "one"), (other, "other")):
        given = properties.as_dict()
        assert given == {"product": "Bunny", "connection_name": name, "capabilities": {"basic.nack": True}}
        assert list(given) == ["product", "connection_name", "capabilities"]


def test_without_a_name() -> None:
    assert ClientProperties(table()).as_dict() == {"product": "Bunny", "capabilities": {"basic.nack": True}}
    assert ClientProperties({}).as_dict() == {}


def test_a_name_may_be_anything() -> None:
    for name in (Field("V", None), Field("l", 7), Field("A", [Field("S", "x")]), Field("S", "")):
        plain = ["x"] if name.kind == "A" else name.value
        assert ClientProperties(table(name)).as_dict()["connection_name"] == plain


def test_values_that_only_look_alike_are_told_apart() -> None:
    values = [Field("t", True), Field("l", 1), Field("d", 1.0), Field("S", "1"), Field("x", b"1")]
    found = [ClientProperties({"v": value}).as_dict()["v"] for value in values]
    assert [(type(one), one) for one in found] == [(type(value.value), value.value) for value in values]


def test_capabilities_may_be_missing_or_no_table() -> None:
    assert ClientProperties(table()).capabilities == {"basic.nack": True}
    assert ClientProperties({}).capabilities == {}
    assert ClientProperties({"capabilities": Field("S", "all")}).capabilities == {}


def test_what_cannot_be_written_is_kept_for_one_client() -> None:
    (found,) = ClientProperties({"v": Field("d", math.nan)}).as_dict().values()
    assert isinstance(found, float) and math.isnan(found)


def test_strangers_fill_no_memory() -> None:
    for number in range(2 * SHARED_MAX):
        ClientProperties(table(product=f"p{number}"))
    assert _decoded.cache_info().currsize == SHARED_MAX
    before = _decoded.cache_info()
    large = table(product="p" * SHARED_BYTES_MAX)
    assert ClientProperties(large).as_dict()["product"] == "p" * SHARED_BYTES_MAX
    assert _decoded.cache_info() == before
