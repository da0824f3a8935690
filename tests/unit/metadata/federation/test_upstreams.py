"""Upstreams and upstream sets: RabbitMQ's texts, and what they mean once checked."""

from __future__ import annotations

import pytest

from leveret.base.json_values import Json
from leveret.metadata.federation.parameters import UPSTREAM, UPSTREAM_SET, faults_of, read_upstream

URI = "amqp://far"


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ({"uri": URI}, []),
        ({"uri": [URI, "amqps://other?verify=verify_none"]}, []),
        ({}, ['Key "uri" not found in u']),
        ({"uri": "http://x"}, ['"http://x" not a valid URI: {{unexpected_uri_scheme,"http"},"http://x"}']),
        ({"uri": URI, "bogus": 1}, ['Unrecognised terms [{<<"bogus">>,1}] in u']),
        ({"uri": URI, "max-hops": "x"}, ['max-hops should be a number, actually was <<"x">>']),
        (
            {"uri": URI, "ack-mode": "maybe"},
            ['ack-mode should be one of [<<"no-ack">>,<<"on-publish">>,<<"on-confirm">>], actually was <<"maybe">>'],
        ),
        (
            {"uri": URI, "resource-cleanup-mode": "maybe"},
            ['resource-cleanup-mode should be one of [<<"default">>,<<"never">>], actually was <<"maybe">>'],
        ),
        ({"uri": URI, "trust-user-id": 1}, ["trust-user-id should be boolean, actually was 1"]),
        ({"uri": URI, "exchange": 1}, ["exchange should be binary, actually was 1"]),
        ({"uri": 5}, ["uri should be list, actually was 5"]),
        ({"uri": []}, ["uri should be a list of 1 to 64 URIs, actually was a list of 0"]),
        ({"uri": URI, "max-hops": 0}, ["max-hops should be a number between 1 and 32767, actually was 0"]),
        (
            {"uri": URI, "expires": "x", "max-hops": "x"},  # The last key first.
            ['expires should be a number, actually was <<"x">>', 'max-hops should be a number, actually was <<"x">>'],
        ),
        (5, ["u should be a map, actually was 5"]),
    ],
)
def test_upstreams(value: Json, texts: list[str]) -> None:
    assert faults_of(UPSTREAM, "u", value, "/") == texts


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ([], []),
        ([{"upstream": "a"}, {"upstream": "b", "max-hops": 2}], []),
        ([{"max-hops": 2}], ['Key "upstream" not found in s']),
        ([{"upstream": 1}], ["upstream should be binary, actually was 1"]),
        ([{"upstream": "a", "uri": URI}], ['Unrecognised terms [{<<"uri">>,<<"amqp://far">>}] in s']),
        ({"upstream": "a"}, ['s should be list, actually was #{<<"upstream">> => <<"a">>}']),
        (["a"], ['s should be a map, actually was <<"a">>']),
    ],
)
def test_sets(value: Json, texts: list[str]) -> None:
    assert faults_of(UPSTREAM_SET, "s", value, "/") == texts


def test_a_uri_without_a_host_needs_access_to_its_vhost() -> None:
    def may_enter(vhost: str) -> bool:
        return vhost == "mine"

    assert faults_of(UPSTREAM, "u", {"uri": "amqp://"}, "mine", "ann", may_enter) == []
    faults = faults_of(UPSTREAM, "u", {"uri": "amqp:///yours"}, "mine", "ann", may_enter)
    assert faults == ['user "ann" may not connect to vhost "yours"']


def test_defaults_and_the_vhost_of_a_uri_without_one() -> None:
    upstream = read_upstream("u", {"uri": [URI, "amqp://far/other"]}, "mine", "ann")
    assert [uri.vhost for uri in upstream.uris] == ["mine", "other"]
    assert (upstream.prefetch, upstream.reconnect_delay_s, upstream.max_hops) == (1000, 5.0, 1)
    assert (upstream.ack_mode, upstream.consumer_tag, upstream.user) == ("on-confirm", "federation-link-u", "ann")
    assert (upstream.expires_ms, upstream.message_ttl_ms, upstream.keeps_resources) == (None, None, False)
    with pytest.raises(ValueError, match="max-hops"):
        read_upstream("u", {"uri": URI, "max-hops": "x"}, "/", "")
