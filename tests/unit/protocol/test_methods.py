from __future__ import annotations

import struct
from typing import Any

import pamqp.commands
import pamqp.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.protocol import codec, methods
from leveret.protocol.errors import ChannelFault, ConnectionFault, ReplyCode, protocol_error, reply_text, resource
from leveret.protocol.methods import METHODS, BadMethod, Method, UnknownMethod
from leveret.protocol.tables import Field, table_from_python

text = st.text(max_size=60)
any_text = st.binary(max_size=255).map(lambda data: data.decode("utf-8", "surrogateescape"))
table = st.dictionaries(st.text(max_size=10), st.one_of(st.booleans(), text), max_size=3).map(table_from_python)
WIRE: dict[str, st.SearchStrategy[Any]] = {
    "Bit": st.booleans(),
    "Octet": st.integers(0, 2**8 - 1),
    "Short": st.integers(0, 2**16 - 1),
    "Long": st.integers(0, 2**32 - 1),
    "LongLong": st.integers(0, 2**64 - 1),
    "ShortStr": text,
    "LongStr": st.binary(max_size=300),
    "Table": table,
}


def forms(made: type[Method]) -> dict[str, str]:
    return {name: each.type for name, each in made.__dataclass_fields__.items()}  # type: ignore[attr-defined]


def build(made: type[Method], values: list[Any]) -> Method:
    return codec._CODECS[made.class_id, made.method_id].build(*values)


@st.composite
def any_method(draw: st.DrawFn) -> Method:
    made = draw(st.sampled_from(list(METHODS.values())))
    values = []
    for form in forms(made).values():
        values.append(draw(any_text if form == "ShortStr" and made.has_content else WIRE[form]))
    return build(made, values)


@given(any_method(), st.integers(0, 65535))
def test_round_trip(method: Method, channel: int) -> None:
    frame = methods.encode(channel, method)
    kind, number, size = struct.unpack_from(">BHI", frame)
    assert (kind, number, size, frame[-1]) == (1, channel, len(frame) - 8, 0xCE)
    payload = frame[7:-1]
    assert methods.decode_payload(payload) == method
    assert methods.decode(method.class_id, method.method_id, payload[4:]) == method


@given(any_method(), st.binary(min_size=1, max_size=3))
def test_too_short_and_too_long(method: Method, more: bytes) -> None:
    payload = methods.encode_payload(method)
    for wrong in [*(payload[:end] for end in range(4, len(payload))), payload + more]:
        with pytest.raises(BadMethod) as caught:
            methods.decode_payload(wrong)
        # A cut through a character is told as such, anything else names the method.
        if caught.value.text != "Malformed UTF-8 in shortstr":
            assert caught.value.text.startswith("cannot decode <<")
            assert (caught.value.class_id, caught.value.method_id) == (method.class_id, method.method_id)


# Fields that nobody uses, with the only value that pamqp lets them have.
FOSSILS: dict[str, Any] = {
    "ticket": 0,
    "capabilities": "",
    "insist": False,
    "known_hosts": "",
    "out_of_band": "0",
    "channel_id": "0",
    "cluster_id": "",
}


def pamqp_twin(made: type[Method]) -> Any:
    group, name = made.name.split(".")
    outer = getattr(pamqp.commands, group.capitalize(), None)
    return None if outer is None else getattr(outer, "".join(word.capitalize() for word in name.split("_")), None)


COMPARED = [made for made in METHODS.values() if pamqp_twin(made) is not None]


def test_pamqp_knows_nearly_all() -> None:
    assert {made.name for made in METHODS.values()} - {made.name for made in COMPARED} == {
        "access.request",
        "access.request_ok",
    }


@pytest.mark.filterwarnings("ignore:This command is deprecated")
@pytest.mark.parametrize("made", COMPARED, ids=lambda made: made.name)
def test_same_bytes_as_pamqp(made: type[Method]) -> None:
    """Every field gets a value of its own, so that none can stand in for another; bits alternate."""
    twin = pamqp_twin(made)()
    assert (made.class_id, made.method_id) == (twin.index >> 16, twin.index & 0xFFFF)
    ours: list[Any] = []
    theirs = list(twin.__slots__)
    assert len(theirs) == len(forms(made))
    for place, ((name, form), attribute) in enumerate(zip(forms(made).items(), theirs, strict=True)):
        sample: Any = {
            "Bit": place % 2 == 0,
            "ShortStr": f"text-{place}",
            "LongStr": f"bytes-{place}",
            "Table": {"flag": True, "text": "é"},
        }.get(form, 1 + place)
        plain = FOSSILS.get(name, sample)
        setattr(twin, attribute, plain)
        ours.append(plain.encode() if form == "LongStr" else table_from_python(plain) if form == "Table" else plain)
    expected = pamqp.frame.marshal(twin, 5)
    assert methods.encode(5, build(made, ours)) == expected


def test_what_methods_know_of_themselves() -> None:
    assert len(METHODS) == 66
    assert METHODS[50, 10] is methods.QueueDeclare
    assert METHODS[60, 100].name == "basic.recover_async"
    assert METHODS[10, 71].name == "connection.update_secret_ok"
    assert {made.name for made in METHODS.values() if made.has_content} == {
        "basic.publish",
        "basic.return",
        "basic.deliver",
        "basic.get_ok",
    }
    assert methods.QueueDeclare.sender == "client"
    assert methods.QueueDeclareOk.sender == "server"
    assert methods.BasicAck.sender == "both"


def test_methods_of_the_same_shape_are_not_equal() -> None:
    different: list[object] = [methods.BasicAck(7, False), methods.BasicReject(7, False)]
    assert different[0] != different[1]
    assert methods.BasicAck(7, False) == methods.BasicAck(7, False)


def test_unknown() -> None:
    with pytest.raises(UnknownMethod):
        methods.decode(50, 99, b"")
    with pytest.raises(BadMethod, match=r"^type 1, all octets = <<0,50>>: unknown_frame$"):
        methods.decode_payload(b"\x00\x32")


def test_refusals_as_rabbitmq_tells_them() -> None:
    with pytest.raises(BadMethod) as caught:
        methods.decode(50, 10, b"\x00\x00\x01q")
    assert (caught.value.text, caught.value.class_id, caught.value.method_id) == ("cannot decode <<0,0,1,113>>", 50, 10)
    with pytest.raises(BadMethod) as caught:
        methods.decode(50, 10, b"\x00\x00\x02\xff\xfe\x00\x00\x00\x00\x00")
    assert (caught.value.text, caught.value.class_id, caught.value.method_id) == ("Malformed UTF-8 in shortstr", 0, 0)


def test_routing_key_may_be_any_bytes_and_spare_bits_mean_nothing() -> None:
    method = methods.decode(60, 40, b"\x00\x00\x00\x01\xff\xfd")
    assert method == methods.BasicPublish(routing_key="\udcff", mandatory=True, immediate=False)


def test_broken_table_refuses_the_method() -> None:
    with pytest.raises(BadMethod, match=r"^cannot decode"):
        methods.decode(50, 10, b"\x00\x00\x00\x00\x00\x00\x00\x03\x01kq")


@pytest.mark.parametrize(
    "method",
    [
        methods.QueueDeclare(queue="q" * 256),
        methods.QueueDeclare(queue="\ud800"),
        methods.QueueDeclareOk("q", 2**32, 0),
        methods.BasicAck(-1),
        methods.QueueDeclare(arguments={"k": Field("b", 200)}),
    ],
    ids=lambda method: method.name,
)
def test_what_cannot_be_written(method: Method) -> None:
    with pytest.raises(BadMethod, match=method.name):
        methods.encode(1, method)


# Reply codes and texts. The expected texts are what RabbitMQ 3.10.8 answered.


def test_codes() -> None:
    soft = {311, 312, 313, 403, 404, 405, 406}
    assert {code.value for code in ReplyCode if code.is_soft} == soft
    assert ReplyCode(406).name == "PRECONDITION_FAILED"


def test_error_closes_what_its_code_says() -> None:
    soft = protocol_error(ReplyCode.NOT_FOUND, "no queue 'q' in vhost '/'", methods.QueueDeclare())
    assert isinstance(soft, ChannelFault)
    assert soft.close() == methods.ChannelClose(404, "NOT_FOUND - no queue 'q' in vhost '/'", 50, 10)
    hard = protocol_error(ReplyCode.NOT_ALLOWED, "attempt to reuse consumer tag 't'", methods.BasicConsume)
    assert isinstance(hard, ConnectionFault)
    assert hard.close() == methods.ConnectionClose(530, "NOT_ALLOWED - attempt to reuse consumer tag 't'", 60, 20)
    assert str(protocol_error(ReplyCode.INTERNAL_ERROR)) == "541 INTERNAL_ERROR"
    with pytest.raises(AssertionError):
        ChannelFault(ReplyCode.NOT_ALLOWED)


def test_reply_text_is_cut() -> None:
    assert reply_text(ReplyCode.NO_ROUTE) == "NO_ROUTE"
    room = 255 - len("NOT_FOUND - ")
    assert reply_text(ReplyCode.NOT_FOUND, "q" * room) == "NOT_FOUND - " + "q" * room
    assert reply_text(ReplyCode.NOT_FOUND, "q" * (room + 1)) == "NOT_FOUND - " + "q" * (room - 3) + "..."


@given(st.text(min_size=50, max_size=300), st.integers(0, 3))
def test_reply_text_stays_readable(explanation: str, shift: int) -> None:
    cut = reply_text(ReplyCode.NOT_FOUND, "x" * shift + explanation)
    assert len(cut.encode()) <= 255
    full = f"NOT_FOUND - {'x' * shift}{explanation}"
    if len(full.encode()) > 255:
        assert cut.endswith("...")
        assert full.startswith(cut[:-3])
        assert len(cut.encode()) >= 252
    else:
        assert cut == full


@given(st.binary(min_size=1, max_size=400))
def test_reply_text_of_any_bytes_can_be_sent(explanation: bytes) -> None:
    cut = reply_text(ReplyCode.NOT_FOUND, explanation.decode("utf-8", "surrogateescape"))
    assert methods.encode(1, methods.ChannelClose(404, cut))


def test_reply_text_of_a_lone_surrogate_can_be_sent() -> None:
    assert reply_text(ReplyCode.NOT_FOUND, "\ud800") == "NOT_FOUND - ?"


def test_resources() -> None:
    assert resource("queue", "q", "/") == "queue 'q' in vhost '/'"
    assert resource("topic", "a.b", "v") == "'a.b' in vhost 'v'"
