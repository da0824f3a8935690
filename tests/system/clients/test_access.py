"""Who gets in, how far, and what it is told otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, ProbableAuthenticationError

from leveret.metadata.defaults import first_boot
from leveret.metadata.model.commands import AddVhost, PutUser, SetPermissions, SetTopicPermissions
from leveret.metadata.rules.passwords import SHA256, SHA512, hash_password
from leveret.protocol import methods as m
from tests.support.consumer import get_all
from tests.support.raw import RawClient
from tests.support.servers import Server, prepare

SALT = b"salt"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with more than one user and vhost."""
    server = Server(tmp_path_factory.mktemp("guarded"))
    prepare(
        server.data,
        [
            *first_boot(SALT),
            AddVhost("other", ""),
            AddVhost("closed", ""),
            PutUser("ann", hash_password("secret", SALT), SHA256, ()),
            PutUser("bob", hash_password("über", SALT, SHA512), SHA512, ()),
            PutUser("nobody", "", SHA256, ()),
            SetPermissions("ann", "/", "^ann-.*", "^(ann-|amq\\.direct).*", "^(ann-|shared|amq\\.).*"),
            SetPermissions("ann", "other", "", "", ""),
            SetPermissions("bob", "/", "", "^amq\\.topic$", ""),
            SetTopicPermissions("bob", "/", "amq.topic", "^bob\\..*", "^never$"),
        ],
    )
    server.start()
    yield server
    server.end()


def refusal(action: Any, *arguments: Any, **options: Any) -> tuple[int, str]:
    with pytest.raises(ChannelClosedByBroker) as caught:
        action(*arguments, **options)
    return caught.value.reply_code, caught.value.reply_text


# -- Logging in --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("user", "password"), [("guest", "wrong"), ("unknown", "guest"), ("nobody", ""), ("guest", ""), ("", "")]
)
def test_refused(guarded: Server, user: str, password: str) -> None:
    """With the same words for every reason, so that nobody can find out which users there are."""
    with pytest.raises(ProbableAuthenticationError) as caught:
        guarded.connect(user, password)
    assert "403" in str(caught.value)
    assert (
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile."
    ) in str(caught.value)


def test_the_log_tells_the_operator_why(guarded: Server) -> None:
    with pytest.raises(ProbableAuthenticationError):
        guarded.connect("stranger", "s3cret")
    assert "user 'stranger' does not exist" in guarded.log()
    assert "s3cret" not in guarded.log()


def test_a_client_that_would_not_understand_is_just_cut(guarded: Server) -> None:
    with RawClient(guarded.port) as client:
        client.begin()
        client.method(m.ConnectionStartOk({}, "PLAIN", b"\0guest\0wrong", "en_US"), 0)
        assert client.is_cut()


def test_other_hash(guarded: Server) -> None:
    assert guarded.connect("bob", "über").is_open


def amqplain(user: str, password: str) -> bytes:
    def pair(key: str, value: str) -> bytes:
        return bytes((len(key),)) + key.encode() + b"S" + len(value).to_bytes(4, "big") + value.encode()

    return pair("LOGIN", user) + pair("PASSWORD", password)


def test_amqplain(guarded: Server) -> None:
    with RawClient(guarded.port) as client:
        start = client.begin()
        assert start.mechanisms.split() == [b"PLAIN", b"AMQPLAIN"]
        client.log_in("AMQPLAIN", amqplain("ann", "secret"))
        client.expect(m.ConnectionTune)


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [
        ("AMQPLAIN", amqplain("ann", "wrong")),
        ("AMQPLAIN", b"\x05LOGIN"),
        ("AMQPLAIN", b""),
        ("PLAIN", b"guest"),
        ("PLAIN", b"\0guest\0guest\0"),
    ],
)
def test_bad_responses(guarded: Server, mechanism: str, response: bytes) -> None:
    with RawClient(guarded.port) as client:
        client.begin()
        client.log_in(mechanism, response)
        close = client.expect(m.ConnectionClose)
        assert close.reply_code == 403


def test_unknown_mechanism(guarded: Server) -> None:
    with RawClient(guarded.port) as client:
        client.begin()
        client.log_in("EXTERNAL", b"")
        close = client.expect(m.ConnectionClose)
        assert (close.reply_code, close.failed_class_id, close.failed_method_id) == (503, 10, 11)
        assert close.reply_text == "COMMAND_INVALID - unknown authentication mechanism 'EXTERNAL'"


def test_server_properties(guarded: Server) -> None:
    properties = guarded.connect()._impl.server_properties
    assert properties["product"] == "RabbitMQ"
    assert properties["cluster_name"]
    for capability in ("publisher_confirms", "basic.nack", "consumer_cancel_notify", "connection.blocked"):
        assert properties["capabilities"][capability] is True


# -- Virtual hosts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("vhost", "text"),
    [
        ("missing", "NOT_ALLOWED - vhost missing not found"),
        ("closed", "NOT_ALLOWED - access to vhost 'closed' refused for user 'ann'"),
    ],
)
def test_vhost_refused(guarded: Server, vhost: str, text: str) -> None:
    with RawClient(guarded.port) as client:
        client.begin()
        client.log_in(response=b"\0ann\0secret")
        client.expect(m.ConnectionTune)
        client.method(m.ConnectionTuneOk(0x7FF, 131_072, 0), 0)
        client.method(m.ConnectionOpen(vhost), 0)
        close = client.expect(m.ConnectionClose)
        assert (close.reply_code, close.reply_text) == (530, text)
        assert (close.failed_class_id, close.failed_method_id) == (10, 40)


def test_vhosts_are_worlds_of_their_own(guarded: Server) -> None:
    here = guarded.channel(user="ann", password="secret")
    here.queue_declare("ann-q")
    there = guarded.connect("ann", "secret", virtual_host="other").channel()
    assert refusal(there.queue_declare, "ann-q", passive=True) == (
        404,
        "NOT_FOUND - no queue 'ann-q' in vhost 'other'",
    )


# -- Permissions -------------------------------------------------------------------------------------------------


@pytest.fixture
def ann(guarded: Server) -> Any:
    admin = guarded.channel()
    admin.queue_declare("shared")
    admin.queue_declare("private")
    return guarded.channel(user="ann", password="secret")


def test_configure(ann: Any) -> None:
    ann.queue_declare("ann-1")
    assert refusal(ann.queue_declare, "other") == (
        403,
        "ACCESS_REFUSED - access to queue 'other' in vhost '/' refused for user 'ann'",
    )


def test_configure_exchange(ann: Any) -> None:
    assert refusal(ann.exchange_declare, "x") == (
        403,
        "ACCESS_REFUSED - access to exchange 'x' in vhost '/' refused for user 'ann'",
    )


def test_read(guarded: Server, ann: Any) -> None:
    guarded.channel(confirms=True).basic_publish("", "shared", b"x")
    assert get_all(ann, "shared") == [b"x"]
    assert refusal(ann.basic_get, "private")[0] == 403
    assert refusal(guarded.channel(user="ann", password="secret").queue_purge, "private")[0] == 403


def test_write(ann: Any) -> None:
    ann.confirm_delivery()
    assert refusal(ann.basic_publish, "", "shared", b"x") == (
        403,
        "ACCESS_REFUSED - access to exchange 'amq.default' in vhost '/' refused for user 'ann'",
    )


def test_bind_needs_both_ends(guarded: Server, ann: Any) -> None:
    ann.queue_declare("ann-2")
    ann.queue_bind("ann-2", "amq.direct", "k")
    assert refusal(ann.queue_bind, "shared", "amq.direct", "k")[0] == 403


def test_the_right_to_write_is_everyones_own(guarded: Server, ann: Any) -> None:
    """The server remembers the route of a publish; it must not remember it for a user who may not take it."""
    admin = guarded.channel(confirms=True)
    admin.exchange_declare("admins")
    admin.basic_publish("admins", "k", b"x")
    ann.confirm_delivery()
    assert refusal(ann.basic_publish, "admins", "k", b"x") == (
        403,
        "ACCESS_REFUSED - access to exchange 'admins' in vhost '/' refused for user 'ann'",
    )


def test_topic_permissions(guarded: Server) -> None:
    bob = guarded.channel(user="bob", password="über", confirms=True)
    bob.basic_publish("amq.topic", "bob.news", b"x")
    assert refusal(bob.basic_publish, "amq.topic", "ann.news", b"x") == (
        403,
        "ACCESS_REFUSED - access to topic 'ann.news' in exchange 'amq.topic' in vhost '/' refused for user 'bob'",
    )


def test_user_id_must_be_ones_own(guarded: Server) -> None:
    bob = guarded.channel(user="bob", password="über", confirms=True)
    bob.basic_publish("amq.topic", "bob.news", b"x", pika.BasicProperties(user_id="bob"))
    code, text = refusal(bob.basic_publish, "amq.topic", "bob.news", b"x", pika.BasicProperties(user_id="ann"))
    assert code == 406
    assert text == "PRECONDITION_FAILED - user_id property set to 'ann' but authenticated user was 'bob'"
