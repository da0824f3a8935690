"""The texts and the order of checks are those a RabbitMQ 3.10.8 server gave."""

from __future__ import annotations

import pytest

from leveret.metadata.model.records import ExchangeSpec, QueueSpec
from leveret.metadata.rules.redeclare import exchange_mismatch, queue_declare_locked, queue_locked, queue_mismatch
from leveret.protocol.tables import Field, Table

LOCKED = (
    "cannot obtain exclusive access to locked queue 'q' in vhost '/'. It could be originally declared on another "
    "connection or the exclusive property value does not match that of the original declaration."
)
EXPIRES = Field("I", 600_000)
TTL = Field("I", 1000)
QUEUE = QueueSpec(1, "/", "q", arguments={"x-message-ttl": TTL, "x-expires": EXPIRES})
FIVE = QueueSpec(1, "/", "q", arguments={"x-max-length": Field("I", 5)})


def text(spec: QueueSpec, arguments: Table, durable: bool = True, auto_delete: bool = False) -> str | None:
    found = queue_mismatch(spec, durable, auto_delete, arguments)
    assert found is None or found.startswith("inequivalent arg ")
    return found and found.removeprefix("inequivalent arg ").replace(" for queue 'q' in vhost '/'", "")


def test_a_lock_is_checked_strictly_on_declaring() -> None:
    locked = QueueSpec(1, "/", "q", exclusive=True, owner="a/1")
    assert queue_declare_locked(locked, True, "a/1") is None
    assert queue_declare_locked(locked, True, "a/2") == LOCKED
    assert queue_declare_locked(locked, False, "a/1") == LOCKED
    assert queue_declare_locked(QUEUE, False, "a/2") is None
    assert queue_declare_locked(QUEUE, True, "a/1") == LOCKED


def test_a_lock_is_for_the_owner() -> None:
    locked = QueueSpec(1, "/", "q", exclusive=True, owner="a/1")
    assert queue_locked(locked, "a/1") is None
    assert queue_locked(locked, "a/2") == LOCKED
    assert queue_locked(locked, None) == LOCKED
    assert queue_locked(QUEUE, "a/2") is None


def test_flags_come_before_arguments() -> None:
    assert queue_mismatch(QUEUE, False, True, {}) == (
        "inequivalent arg 'durable' for queue 'q' in vhost '/': received 'false' but current is 'true'"
    )
    assert text(QUEUE, {}, auto_delete=True) == "'auto_delete': received 'true' but current is 'false'"


def test_arguments_are_compared_in_order() -> None:
    missing = "received none but current is the value"
    assert text(QUEUE, {}) == f"'x-expires': {missing} '600000' of type 'signedint'"
    assert text(QUEUE, {"x-expires": EXPIRES}) == f"'x-message-ttl': {missing} '1000' of type 'signedint'"
    both = {"x-message-ttl": TTL, "x-expires": EXPIRES}
    assert text(QUEUE, both) is None
    assert text(QUEUE, {**both, "x-unknown": Field("I", 1), "x-delivery-limit": Field("I", 1)}) is None
    assert text(QUEUE, {**both, "x-message-ttl": Field("I", 2000)}) == (
        "'x-message-ttl': received '2000' but current is '1000'"
    )
    added = {**both, "x-queue-type": Field("S", "quorum"), "x-overflow": Field("S", "drop-head")}
    assert text(QUEUE, added) == ("'x-overflow': received the value 'drop-head' of type 'longstr' but current is none")


def test_no_queue_type_means_classic() -> None:
    plain, classic = QueueSpec(1, "/", "q"), QueueSpec(1, "/", "q", arguments={"x-queue-type": Field("S", "classic")})
    assert text(plain, classic.arguments) is None
    assert text(classic, {}) is None
    assert text(plain, {"x-queue-type": Field("S", "quorum"), "x-queue-master-locator": Field("S", "m")}) == (
        "'x-queue-type': received the value 'quorum' of type 'longstr' but current is none"
    )
    quorum = QueueSpec(
        1,
        "/",
        "q",
        arguments={"x-queue-type": Field("S", "quorum"), "x-delivery-limit": Field("I", 3), "x-expires": TTL},
    )
    assert text(quorum, {"x-queue-type": Field("S", "quorum"), "x-expires": TTL}) == (
        "'x-delivery-limit': received none but current is the value '3' of type 'signedint'"
    )


@pytest.mark.parametrize("kind", "bBsuIilT")
def test_integers_of_any_width_are_equal(kind: str) -> None:
    assert text(FIVE, {"x-max-length": Field(kind, 5)}) is None


@pytest.mark.parametrize(
    ("field", "untyped", "typed"),
    [
        (Field("d", 5.0), "'5.0'", "the value '5.0' of type 'double'"),
        (Field("f", 0.10000000149011612), "'0.10000000149011612'", "the value '0.10000000149011612' of type 'float'"),
        (Field("d", 1e25), "'1.0e25'", "the value '1.0e25' of type 'double'"),
        (Field("t", True), "'true'", "the value 'true' of type 'bool'"),
        (Field("S", "5"), "'5'", "the value '5' of type 'longstr'"),
        (Field("x", b"5"), "'5'", "the value '5' of type 'binary'"),
        (Field("V", None), "none", "the value 'undefined' of type 'void'"),
        (Field("D", (0, 5)), "'{0,5}'", "the value '{0,5}' of type 'decimal'"),
        (Field("A", [Field("I", 5)]), "'[{signedint,5}]'", "the value '[{signedint,5}]' of type 'array'"),
        (
            Field("F", {"a": Field("I", 5)}),
            """'[{<<"a">>,signedint,5}]'""",
            """the value '[{<<"a">>,signedint,5}]' of type 'table'""",
        ),
    ],
)
def test_values_are_shown_as_erlang_does(field: Field, untyped: str, typed: str) -> None:
    assert text(FIVE, {"x-max-length": field}) == f"'x-max-length': received {untyped} but current is '5'"
    assert text(FIVE, {"x-max-length": Field("I", 5), "x-overflow": field}) == (
        f"'x-overflow': received {typed} but current is none"
    )


EXCHANGE = ExchangeSpec(
    "/", "x", "direct", arguments={"alternate-exchange": Field("S", "ae"), "x-other": Field("I", 1)}
)


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        (
            ("fanout", False, True, True, {}),
            "'type' for exchange 'x' in vhost '/': received 'fanout' but current is 'direct'",
        ),
        (
            ("direct", False, True, True, {}),
            "'durable' for exchange 'x' in vhost '/': received 'false' but current is 'true'",
        ),
        (
            ("direct", True, True, True, {}),
            "'auto_delete' for exchange 'x' in vhost '/': received 'true' but current is 'false'",
        ),
        (
            ("direct", True, False, True, {}),
            "'internal' for exchange 'x' in vhost '/': received 'true' but current is 'false'",
        ),
        (
            ("direct", True, False, False, {}),
            "'alternate-exchange' for exchange 'x' in vhost '/': received none but current is the value 'ae' "
            "of type 'longstr'",
        ),
        (
            ("direct", True, False, False, {"alternate-exchange": Field("S", "af")}),
            "'alternate-exchange' for exchange 'x' in vhost '/': received 'af' but current is 'ae'",
        ),
        (("direct", True, False, False, {"alternate-exchange": Field("x", b"ae")}), None),
        (("direct", True, False, False, {"alternate-exchange": Field("S", "ae")}), None),
    ],
)
def test_exchanges(declared: tuple[str, bool, bool, bool, Table], expected: str | None) -> None:
    assert exchange_mismatch(EXCHANGE, *declared) == (expected and f"inequivalent arg {expected}")
