"""The client's machine: what a broker may send, piece by piece, and what a hostile one may not."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from leveret.client import amqp
from leveret.client.address import Address
from leveret.client.machine import HEARTBEAT_FRAME, BundleDelivery, ClientMachine, Closed, Delivery
from leveret.protocol.bundles import Bundle, delivery_frame, packed
from leveret.protocol.frames import content
from leveret.protocol.origins import source_of, with_origins
from leveret.protocol.properties import Properties, encode

DELIVER = b"\x03tag"


class Told:
    """Notes what a machine tells."""

    def __init__(self) -> None:
        self.log: list[object] = []

    def on_open(self) -> None:
        self.log.append("open")

    def on_deliveries(self, deliveries: list[Delivery]) -> None:
        self.log.append(deliveries)

    def on_bundle(self, delivery: BundleDelivery) -> None:
        self.log.append(delivery)

    def on_confirm(self, number: int, multiple: bool, refused: bool) -> None:
        self.log.append((number, multiple, refused))

    def on_returned(self, text: str) -> None:
        self.log.append(f"returned {text}")

    def on_cancelled(self) -> None:
        self.log.append("cancelled")

    def on_blocked(self, reason: str | None) -> None:
        self.log.append(f"blocked {reason}")

    def on_closed(self, error: Closed) -> None:
        self.log.append(str(error))


def opened(heartbeat_s: int = 0, content_bytes_max: int = 1 << 20) -> tuple[ClientMachine, Told]:
    told = Told()
    address = Address("h", 1, "u", "p", "/")
    machine = ClientMachine(told, address, {}, (), heartbeat_s, content_bytes_max)
    machine.start()
    start = b"\0\x09" + struct.pack(">I", 0) + amqp.long(b"PLAIN AMQPLAIN") + amqp.long(b"en_US")
    machine.receive(amqp.method(amqp.CONNECTION_START, start, 0))
    machine.receive(amqp.method(amqp.CONNECTION_TUNE, struct.pack(">HIH", 10, 131_072, 60), 0))
    machine.receive(amqp.method(amqp.CONNECTION_OPEN_OK, b"\0", 0))
    machine.receive(amqp.method(amqp.CHANNEL_OPEN_OK, b"\0\0\0\0"))
    assert told.log == ["open"]
    told.log.clear()
    machine.take_output()
    return machine, told


def deliver(tag: int, body: bytes, frame_max: int = 0, redelivered: bool = False) -> tuple[bytes, bytes]:
    made = content(encode(Properties(), len(body)), body, frame_max)
    head = amqp.method(amqp.BASIC_DELIVER, DELIVER + struct.pack(">QB", tag, redelivered) + b"\x01x\x01k")
    return head + made, made


@pytest.mark.parametrize("piece", [1, 3, 7, 100, 10_000])
def test_deliveries_in_pieces_of_any_size(piece: int) -> None:
    machine, told = opened()
    bodies = [b"", b"a" * 10, b"b" * 9_000, b"c" * 5_000]
    sent = [deliver(tag, body, 4_096, tag == 2) for tag, body in enumerate(bodies, 1)]
    data = b"".join(one for one, _ in sent)
    for at in range(0, len(data), piece):
        machine.receive(data[at : at + piece])
    found = [one for entry in told.log if isinstance(entry, list) for one in entry]
    assert found == [Delivery(tag, tag == 2, b"\x01x\x01k", made) for tag, (_, made) in enumerate(sent, 1)]


def test_deliveries_that_come_together_are_told_together() -> None:
    machine, told = opened()
    machine.receive(deliver(1, b"a")[0] + deliver(2, b"b")[0])
    assert len(told.log) == 1


def labelled(tag: int, body: bytes, redelivered: bool = False, key: bytes = b"k") -> tuple[bytes, bytes]:
    """A delivery whose message has an origin."""
    (made,) = with_origins([content(encode(Properties(), len(body)), body, 0)], source_of(b"a" * 32, 1, 2), tag)
    route = b"\x01x" + bytes((len(key),)) + key
    return amqp.method(amqp.BASIC_DELIVER, DELIVER + struct.pack(">QB", tag, redelivered) + route) + made, made


@pytest.mark.parametrize("piece", [1, 50, 10_000])
@pytest.mark.parametrize("make", [deliver, labelled])
def test_deliveries_that_resemble_each_other(make: Callable[..., tuple[bytes, bytes]], piece: int) -> None:
    """Bodies of any length, with others in between that differ in something."""
    machine, told = opened()
    sent = [make(tag, b"b" * (tag % 7 * 30)) for tag in range(1, 60)]
    sent += [make(tag, b"c", redelivered=tag % 5 == 0) for tag in range(60, 80)]
    sent += [labelled(tag, b"d", key=b"other") if tag % 3 else deliver(tag, b"d") for tag in range(80, 100)]
    data = b"".join(one for one, _ in sent)
    for at in range(0, len(data), piece):
        machine.receive(data[at : at + piece])
    found = [one for entry in told.log if isinstance(entry, list) for one in entry]
    assert [one.tag for one in found] == list(range(1, 100))
    assert [one.content for one in found] == [made for _, made in sent]
    assert [one.tag for one in found if one.redelivered] == list(range(60, 80, 5))
    assert [one.route[3:] for one in found[79:]] == [b"other" if tag % 3 else b"k" for tag in range(80, 100)]


@pytest.mark.parametrize("at", [-1, -10, -13])
def test_what_resembles_a_delivery_and_is_none_is_refused(at: int) -> None:
    """The end of the body frame, its size, or its type is wrong."""
    machine, told = opened()
    bad = bytearray(deliver(3, b"12345")[0])
    bad[at] ^= 0x55
    machine.receive(deliver(1, b"12345")[0] + deliver(2, b"12345")[0] + bytes(bad) + deliver(4, b"12345")[0] * 99)
    found = [one.tag for entry in told.log if isinstance(entry, list) for one in entry]
    assert machine.is_over and set(found) <= {1, 2}


def test_a_heartbeat_between_the_frames_of_a_content() -> None:
    machine, told = opened()
    data, made = deliver(1, b"hello")
    head = data[: -len(made)]
    machine.receive(head + HEARTBEAT_FRAME + made)
    assert told.log == [[Delivery(1, False, b"\x01x\x01k", made)]]


def test_confirms_returns_blocking_and_cancelling() -> None:
    machine, told = opened()
    machine.receive(amqp.method(amqp.BASIC_ACK, struct.pack(">QB", 5, 1)))
    machine.receive(amqp.method(amqp.BASIC_NACK, struct.pack(">QB", 6, 0)))
    returned = amqp.method(amqp.BASIC_RETURN, struct.pack(">H", 312) + amqp.short("NO_ROUTE") + b"\0\0")
    machine.receive(returned + content(encode(Properties(), 3), b"abc", 0))
    machine.receive(amqp.method(amqp.CONNECTION_BLOCKED, amqp.short("low on memory"), 0))
    machine.receive(amqp.method(amqp.CONNECTION_UNBLOCKED, b"", 0))
    machine.receive(amqp.method(amqp.BASIC_CANCEL, amqp.short("tag") + b"\1"))
    assert told.log == [
        (5, True, False), (6, False, True), "returned 312 NO_ROUTE", "blocked low on memory", "blocked None",
        "cancelled",
    ]  # fmt: skip


def test_a_refused_call_closes_the_channel_which_can_be_opened_again() -> None:
    machine, told = opened()
    answers: list[object] = []
    machine.call(amqp.QUEUE_DECLARE, b"", answers.append)
    refusal = struct.pack(">H", 404) + amqp.short("NOT_FOUND - no queue") + b"\0\x32\0\x0a"
    machine.receive(amqp.method(amqp.CHANNEL_CLOSE, refusal))
    (answer,) = answers
    assert isinstance(answer, Closed) and answer.code == 404 and answer.of_channel
    machine.reopen_channel(answers.append)
    machine.receive(amqp.method(amqp.CHANNEL_OPEN_OK, b"\0\0\0\0"))
    assert answers[1] == b"\0\0\0\0" and machine.is_open and told.log == []


def test_a_channel_that_is_closed_unasked_is_the_end() -> None:
    machine, told = opened()
    machine.receive(amqp.method(amqp.CHANNEL_CLOSE, struct.pack(">H", 406) + amqp.short("no") + b"\0\0\0\0"))
    assert told.log == ["channel closed by the broker: 406 no"]
    assert not machine.is_open


def test_a_lost_connection_answers_what_was_asked() -> None:
    machine, told = opened()
    answers: list[object] = []
    machine.call(amqp.CONFIRM_SELECT, b"\0", answers.append)
    machine.on_lost("gone")
    assert isinstance(answers[0], Closed) and told.log == ["gone"]
    machine.call(amqp.CONFIRM_SELECT, b"\0", answers.append)
    assert isinstance(answers[1], Closed)


HUGE = amqp.HEAD.pack(amqp.METHOD, 1, 1 << 31)
HEADER_ALONE = content(encode(Properties(), 0), b"", 0)


@pytest.mark.parametrize(
    "data",
    [
        HUGE,
        b"\x01\x00\x07\x00\x00\x00\x04\x00\x3c\x00\x50\xce",
        b"\x09\x00\x01\x00\x00\x00\x00\xce",
        HEARTBEAT_FRAME[:-1] + b"\x00",
        HEADER_ALONE,
        amqp.frame(amqp.BODY, b"abc"),
        amqp.method(amqp.BASIC_ACK, b"abc"),
        amqp.method(amqp.BASIC_DELIVER, b"\xff"),
        amqp.method(amqp.BASIC_DELIVER, DELIVER + bytes(9) + b"\x05x\x00"),
        amqp.method(amqp.BASIC_DELIVER, DELIVER + bytes(9) + b"\x01x\x01k") + amqp.method(amqp.BASIC_ACK, bytes(9)),
        amqp.method(amqp.QUEUE_DECLARE, b""),
        deliver(1, b"x" * 100)[0][:-1] + b"\x00",
        amqp.frame(amqp.METHOD, b"\0"),
    ],
)
def test_what_a_broker_may_not_send(data: bytes) -> None:
    machine, told = opened()
    machine.receive(data)
    assert len(told.log) == 1 and isinstance(told.log[0], str) and not machine.is_open
    machine.receive(deliver(1, b"x")[0])
    assert len(told.log) == 1


def test_a_message_that_is_too_large_is_refused_by_its_header() -> None:
    machine, told = opened(content_bytes_max=1_000)
    machine.receive(deliver(1, b"x" * 1_001)[0][:60])
    assert "at most 1000" in str(told.log)


@pytest.mark.parametrize("greeting", [b"AMQP\x00\x01\x00\x00", b"HTTP/1.1 400 Bad Request\r\n"])
def test_another_protocol(greeting: bytes) -> None:
    told = Told()
    machine = ClientMachine(told, Address("h", 1, "u", "p", "/"), {})
    machine.start()
    machine.receive(greeting)
    assert "speaks" in str(told.log)


def test_heartbeats_are_sent_and_missed() -> None:
    machine, told = opened(heartbeat_s=4)
    machine.on_tick(1_000)
    assert machine.take_output() == []
    for _ in range(3):
        machine.on_tick(1_000)
    assert machine.take_output() == [HEARTBEAT_FRAME]
    machine.receive(HEARTBEAT_FRAME)
    for _ in range(6):
        machine.on_tick(1_000)
    assert machine.is_open
    for _ in range(6):
        machine.on_tick(1_000)
    assert told.log == ["missed heartbeats from the broker, timeout: 4s"]


def test_a_broker_is_not_silent_while_nobody_listens() -> None:
    machine, told = opened(heartbeat_s=4)
    for _ in range(100):
        machine.on_tick(1_000, is_listening=False)
    assert machine.is_open and told.log == [] and HEARTBEAT_FRAME in machine.take_output()


def test_a_late_tick_counts_for_half_an_interval() -> None:
    machine, told = opened(heartbeat_s=4)
    machine.on_tick(1_000_000)
    assert machine.is_open and told.log == []


@pytest.mark.parametrize(
    ("mechanisms", "response"),
    [(("external",), b""), (("plain",), b"\0u\0p"), (("amqplain",), b"\x05LOGINS\0\0\0\x01u")],
)
def test_mechanisms(mechanisms: tuple[str, ...], response: bytes) -> None:
    machine = ClientMachine(Told(), Address("h", 1, "u", "p", "/"), {}, mechanisms)
    machine.start()
    offered = amqp.long(b"PLAIN AMQPLAIN EXTERNAL")
    machine.receive(amqp.method(amqp.CONNECTION_START, b"\0\x09" + struct.pack(">I", 0) + offered + amqp.long(b""), 0))
    sent = b"".join(machine.take_output())
    assert amqp.short(mechanisms[0].upper()) in sent and response in sent


def test_no_mechanism_in_common() -> None:
    told = Told()
    machine = ClientMachine(told, Address("h", 1, "u", "p", "/"), {}, ("external",))
    machine.start()
    start = b"\0\x09" + struct.pack(">I", 0) + amqp.long(b"PLAIN") + amqp.long(b"")
    machine.receive(amqp.method(amqp.CONNECTION_START, start, 0))
    assert "none of EXTERNAL" in str(told.log)


def bundled(tag: int, count: int, redelivered: bool = False) -> tuple[bytes, bytes]:
    made = packed(Bundle(source_of(b"a" * 32, 1, 2), tag, [content(encode(Properties(), 1), b"b", 0)] * count))
    return b"".join(delivery_frame(1, tag, redelivered, b"\x01x\x01k", made)), made


@pytest.mark.parametrize("piece", [1, 50, 10_000])
def test_bundles_among_deliveries(piece: int) -> None:
    machine, told = opened()
    machine.await_bundles()
    (first, made), (second, other) = bundled(3, 4), bundled(8, 1, redelivered=True)
    data = deliver(1, b"a")[0] + deliver(2, b"a")[0] + first + deliver(7, b"a")[0] + second
    for at in range(0, len(data), piece):
        machine.receive(data[at : at + piece])
    assert [one for one in told.log if isinstance(one, BundleDelivery)] == [
        BundleDelivery(3, 4, False, b"\x01x\x01k", made),
        BundleDelivery(8, 1, True, b"\x01x\x01k", other),
    ]
    order = [one.first_tag if isinstance(one, BundleDelivery) else one[0].tag for one in told.log]  # type: ignore[index]
    assert order == sorted(order)


def test_a_bundle_that_nobody_asked_for() -> None:
    machine, told = opened()
    machine.receive(bundled(1, 2)[0])
    assert told.log == ["sent a frame of the unknown type 76"]


@pytest.mark.parametrize(
    "payload", [b"", bytes(9), bytes(11), bytes(9) + b"\xff", bytes(11 + 78), bytes(11 + 74) + b"\xff" * 8]
)
def test_a_malformed_bundle(payload: bytes) -> None:
    machine, told = opened()
    machine.await_bundles()
    machine.receive(amqp.frame(amqp.BUNDLE, payload))
    assert told.log == ["sent a malformed bundle"]
