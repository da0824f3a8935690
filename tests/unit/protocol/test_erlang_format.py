from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.protocol.erlang_format import described, printed_float, printed_value
from leveret.protocol.tables import Field


def test_described() -> None:
    assert described(None) == "none"
    assert described(Field("I", 1)) == "the value '1' of type 'signedint'"
    assert described(Field("t", True)) == "the value 'true' of type 'bool'"


@pytest.mark.parametrize(
    ("field", "printed"),
    [
        (Field("V", None), "undefined"),
        (Field("D", (2, 5)), "{2,5}"),
        (Field("x", b"\x01a"), "\x01a"),
        (Field("T", 3), "3"),
        (Field("A", []), "[]"),
        (Field("A", [Field("S", "a"), Field("I", 7)]), '[{longstr,<<"a">>},{signedint,7}]'),
        (Field("A", [Field("S", 'é\n"')]), '[{longstr,<<"é\\n\\"">>}]'),
        (Field("F", {"k": Field("S", "v")}), '[{<<"k">>,longstr,<<"v">>}]'),
    ],
)
def test_values_as_erlang_prints_them(field: Field, printed: str) -> None:
    assert printed_value(field) == printed


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.5, "1.5"),
        (-2.0, "-2.0"),
        (100.0, "100.0"),
        (1000.0, "1.0e3"),
        (123456.0, "123456.0"),
        (1e20, "1.0e20"),
        (1.25e-7, "1.25e-7"),
        (0.0001, "0.0001"),
        (0.10000000149011612, "0.10000000149011612"),
    ],
)
def test_floats_as_erlang_prints_them(value: float, printed: str) -> None:
    assert printed_float(value) == printed


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_printed_float_is_the_same_number(value: float) -> None:
    assert float(printed_float(value)) == value
