"""The keys of a shovel: RabbitMQ's texts, as its own validator (3.10.8) prints them, and what is stricter here."""

from __future__ import annotations

import pytest

from leveret.base.json_values import Json
from leveret.metadata.shovel.parameters import Shovel, faults_of, read_shovel, redacted

ENDS: dict[str, Json] = {"src-uri": "amqp://", "dest-uri": "amqp://"}
WHOLE: dict[str, Json] = {**ENDS, "src-queue": "a"}


def said(**more: Json) -> list[str]:
    return faults_of("n", {**WHOLE, **{key.replace("_", "-"): value for key, value in more.items()}})


def test_what_is_missing() -> None:
    assert faults_of("n", {}) == [
        "Must specify 'src-exchange' or 'src-queue'",
        'Key "dest-uri" not found in n',
        'Key "src-uri" not found in n',
    ]
    assert faults_of("n", ENDS) == ["Must specify 'src-exchange' or 'src-queue'"]
    assert faults_of("n", WHOLE) == []


@pytest.mark.parametrize("value", [5, None, "x", [], True])
def test_a_value_that_is_no_object(value: Json) -> None:
    assert len(faults_of("n", value)) == 1


def test_contradictions() -> None:
    assert said(src_exchange="x") == ["Cannot specify 'src-exchange' and 'src-queue'"]
    assert said(dest_exchange="x", dest_queue="q") == ["Cannot specify 'dest-exchange' and 'dest-queue'"]
    no_ack: dict[str, Json] = {"delete-after": 1, "ack-mode": "no-ack"}
    assert faults_of("n", {**WHOLE, **no_ack}) == ["Cannot specify 'no-ack' and numerical 'delete-after'"]


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("ack-mode", "maybe", 'one of [<<"no-ack">>,<<"on-publish">>,<<"on-confirm">>], actually was <<"maybe">>'),
        ("ack-mode", 5, "binary, actually was 5"),
        ("delete-after", "x", 'a number greater than or equal to 0, "never" or "queue-length", actually was <<"x">>'),
        ("delete-after", -1, 'a number greater than or equal to 0, "never" or "queue-length", actually was -1'),
        ("delete-after", 1 << 63, "a number between 0 and 9.22337e+18, actually was 9223372036854775808"),
        ("src-delete-after-duration", 1 << 31, "a number between 1 and 2.14748e+09, actually was 2147483648"),
        ("src-delete-after", 1.5, 'a number greater than or equal to 0, "never" or "queue-length", actually was 1.5'),
        ("prefetch-count", "x", 'a number, actually was <<"x">>'),
        ("add-forward-headers", "x", 'boolean, actually was <<"x">>'),
        ("dest-queue", 5, "binary, actually was 5"),
        ("dest-queue", "a" * 300, "less than 255 bytes, actually was 300"),
        ("src-uri", 5, "list, actually was 5"),
        ("src-uri", ["amqp://", 5], "list, actually was 5"),
    ],
)
def test_the_value_of_a_key(key: str, value: Json, text: str) -> None:
    assert faults_of("n", {**WHOLE, key: value}) == [f"{key} should be {text}"]


def test_unknown_keys() -> None:
    assert said(bogus=1) == ['Unrecognised terms [{<<"bogus">>,1}] in n']
    several: dict[str, Json] = {"e": 1.0, "b": [1, 2], "d": None, "c": True}
    assert faults_of("n", {**WHOLE, **several}) == [
        'Unrecognised terms [{<<"b">>,[1,2]},{<<"c">>,true},{<<"d">>,null},{<<"e">>,1.0}] in n'
    ]
    assert said(src_queue_args={"x-foo": 1}) == ['Unrecognised terms [{<<"x-foo">>,1}] in src-queue-args']
    assert said(src_consumer_args={"x-foo": 1}) == ['Unrecognised terms [{<<"x-foo">>,1}] in src-consumer-args']


def test_the_last_key_comes_first() -> None:
    assert said(ack_mode=5, prefetch_count="x", add_forward_headers=1) == [
        "add-forward-headers should be boolean, actually was 1",
        'prefetch-count should be a number, actually was <<"x">>',
        "ack-mode should be binary, actually was 5",
    ]


def test_properties() -> None:
    assert said(publish_properties={"delivery_mode": "2", "foo": 1, "content_type": 5}) == [
        'Unrecognised terms [{<<"foo">>,1}] in publish-properties',
        'delivery_mode should be a number, actually was <<"2">>',
        "content_type should be binary, actually was 5",
    ]
    assert said(publish_properties={"headers": {}}) == [
        'Unrecognised terms [{<<"headers">>,#{}}] in publish-properties'
    ]
    assert said(publish_properties={"priority": 256}) != []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("src-uri", []),
        ("src-uri", ["amqp://"] * 65),
        ("src-queue", "a" * 256),
        ("src-protocol", "x"),
        ("src-protocol", "amqp10"),
        ("dest-protocol", "amqp10"),
        ("src-queue-args", 5),
        ("prefetch-count", 0),
        ("prefetch-count", 65_536),
        ("reconnect-delay", -1),
        ("reconnect-delay", 1e300),
        ("src-delete-after-duration", 0),
        ("delete-after", True),
    ],
)
def test_what_rabbitmq_accepts_and_fails_on_is_refused(key: str, value: Json) -> None:
    assert faults_of("n", {**WHOLE, key: value}) != []


def test_a_vhost_of_this_cluster_that_the_user_may_not_enter() -> None:
    value: Json = {**WHOLE, "src-uri": "amqp:///nosuch"}
    assert faults_of("n", value, "guest", lambda vhost: vhost == "/") == [
        'user "guest" may not connect to vhost "nosuch"'
    ]
    assert faults_of("n", value) == []
    far: Json = {**WHOLE, "src-uri": "amqp://far/nosuch"}
    assert faults_of("n", far, "guest", lambda vhost: vhost == "/") == []


def test_reading() -> None:
    assert read_shovel(WHOLE) == Shovel(read_shovel(WHOLE).src_uris, read_shovel(WHOLE).dest_uris, src_queue="a")
    shovel = read_shovel(
        {
            "src-uri": ["amqp://a", "amqp://b"],
            "dest-uri": "amqps://u:p@c:1/v%2f?heartbeat=3",
            "src-exchange": "x",
            "src-exchange-key": "#",
            "src-prefetch-count": 7,
            "prefetch-count": 9,
            "src-delete-after": 5,
            "dest-exchange": "y",
            "dest-exchange-key": "k",
            "dest-publish-properties": {"delivery_mode": 2},
            "dest-add-forward-headers": True,
            "add-timestamp-header": True,
            "ack-mode": "on-publish",
            "reconnect-delay": 0.5,
            "src-delete-after-duration": 3,
        }
    )
    assert [uri.host for uri in shovel.src_uris] == ["a", "b"]
    assert (shovel.prefetch, shovel.delete_after, shovel.delete_after_s) == (7, 5, 15)
    assert (shovel.add_forward_headers, shovel.add_timestamp_header) == (True, True)
    assert (shovel.ack_mode, shovel.reconnect_delay_s) == ("on-publish", 0.5)
    with pytest.raises(ValueError, match="src-uri"):
        read_shovel({})


def test_passwords_are_not_shown() -> None:
    shown = redacted({**WHOLE, "src-uri": ["amqp://u:p@h/v", "amqps://h?password=x&verify=verify_none"]})
    assert isinstance(shown, dict)
    assert shown["src-uri"] == ["amqp://h/v", "amqps://h?password=&verify=verify_none"]
    assert redacted(5) == 5
