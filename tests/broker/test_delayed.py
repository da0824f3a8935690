from __future__ import annotations

import pytest

from leveret.amqp import methods as m
from leveret.amqp.tables import Field
from leveret.broker.delayed import DELAY_MS_MAX, check_delayed_arguments, delay_ms
from tests.machines import World


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


def test_refused_as_long_as_nothing_keeps_the_messages() -> None:
    arguments = {"x-delayed-type": Field("S", "direct")}
    client = World().client()
    client.send(m.ExchangeDeclare(exchange="x", type="x-delayed-message", arguments=arguments))
    (answer,) = client.methods()
    assert isinstance(answer, m.ConnectionClose) and answer.reply_code == 503
