"""URIs of brokers."""

from __future__ import annotations

import pytest

from leveret.metadata.shovel.uris import BadUri, parse_uri, safe_uri


def test_parts() -> None:
    uri = parse_uri("amqps://a%40n:p%3Aw@Example.com:77/v%2Fh?heartbeat=5&verify=verify_none&cacertfile=/c&certfile=/d")
    assert (uri.tls, uri.host, uri.port, uri.user, uri.password, uri.vhost) == (
        True, "example.com", 77, "a@n", "p:w", "v/h",
    )  # fmt: skip
    assert (uri.heartbeat_s, uri.verifies, uri.cacertfile, uri.certfile) == (5, False, "/c", "/d")
    assert "a%40n" not in uri.text and "p%3Aw" not in uri.text


def test_defaults() -> None:
    uri = parse_uri("amqp://h")
    assert (uri.port, uri.user, uri.vhost, uri.heartbeat_s, uri.verifies, uri.mechanisms) == (
        5672, None, "/", 10, True, (),
    )  # fmt: skip
    assert parse_uri("amqps://h").port == 5671
    assert parse_uri("amqp://h/").vhost == ""
    assert parse_uri("amqp://h?auth_mechanism=external&auth_mechanism=PLAIN").mechanisms == ("external", "plain")
    assert parse_uri("amqp://h?foo=x&connection_timeout=500").connect_ms == 500
    assert parse_uri("amqp://[::1]:5").host == "::1"
    assert (uri.channel_max, uri.server_name) == (0, "")
    other = parse_uri("amqps://h?channel_max=7&server_name_indication=disable")
    assert (other.channel_max, other.server_name) == (7, None)
    assert parse_uri("amqps://h?server_name_indication=n&channel_max=99999").server_name == "n"


@pytest.mark.parametrize("text", ["amqp://", "amqp:///vh", "amqp:///", "amqp://u:p@/vh"])
def test_this_cluster(text: str) -> None:
    assert parse_uri(text).is_direct


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("http://x", '{{unexpected_uri_scheme,"http"},"http://x"}'),
        ("amqp://h:99999", '{{port_out_of_range,99999},"amqp://h:99999"}'),
        ("amqp://h/a/b", '{{invalid_vhost,"a/b"},"amqp://h/a/b"}'),
        ("", '{{unable_to_parse_uri,no_scheme},""}'),
        ("amqp://h:x", '{unable_to_parse_uri,"amqp://h:x"}'),
        ("amqp://%zz", '{invalid_entity,"amqp://%zz"}'),
        ("amqps://h?verify=maybe", '{{invalid_amqp_params_parameter,verify,"maybe"},"amqps://h?verify=maybe"}'),
        ("amqp://h?auth_mechanism=x", '{{invalid_auth_mechanism,"x"},"amqp://h?auth_mechanism=x"}'),
        ("amqp://[", '{unable_to_parse_uri,"amqp://["}'),
        ("amqp://" + "a" * 5000, "{uri_too_long,5007}"),
        ("amqp://a%00b", '{invalid_host,"amqp://a%00b"}'),
    ],
)
def test_what_is_no_uri(text: str, term: str) -> None:
    with pytest.raises(BadUri) as caught:
        parse_uri(text)
    assert str(caught.value) == term


def test_a_number_that_is_none() -> None:
    with pytest.raises(BadUri, match="not_an_integer"):
        parse_uri("amqp://h?heartbeat=x")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("amqp://u:p@h/v", "amqp://h/v"),
        ("amqp://u:p/w@h/v", "amqp://h/v"),
        ("amqp://h/v", "amqp://h/v"),
        ("nonsense://u:p@", "nonsense://"),
    ],
)
def test_safe(text: str, shown: str) -> None:
    assert safe_uri(text) == shown
