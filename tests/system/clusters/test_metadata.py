"""What was agreed on at one node is in force at every other when the answer comes: no waiting, no second try."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pika
import pytest

from tests.support.consumer import waiting
from tests.support.members import Cluster, Member, refusal

ROUNDS = 8
PAIRS = list(permutations(range(3), 2))


@pytest.fixture
def channels(cluster: Cluster) -> list[Any]:
    return [node.channel() for node in cluster]


@pytest.mark.parametrize(("here", "there"), PAIRS)
def test_declare_and_delete(channels: list[Any], name: str, here: int, there: int) -> None:
    one, other = channels[here], channels[there]
    for number in range(ROUNDS):
        queue = f"{name}-{number}"
        one.queue_declare(queue, durable=bool(number % 2))
        assert waiting(other, queue) == 0
        one.exchange_declare(queue, "topic")
        other.exchange_declare(queue, passive=True)
        one.queue_bind(queue, queue, "a.#")
        other.basic_publish(queue, "a.b", b"x")
        assert waiting(other, queue) == 1
        one.queue_unbind(queue, queue, "a.#")
        other.basic_publish(queue, "a.b", b"x")
        assert waiting(other, queue) == 1
        assert one.queue_delete(queue).method.message_count == 1
        one.exchange_delete(queue)
        other.queue_declare(queue, durable=not number % 2)  # The other way round: the old one is gone.
        assert other.queue_delete(queue).method.message_count == 0
    assert refusal(other.queue_declare, f"{name}-0", passive=True) == (
        404,
        f"NOT_FOUND - no queue '{name}-0' in vhost '/'",
    )
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match=f"no exchange '{name}-0' in vhost '/'"):
        one.exchange_declare(f"{name}-0", passive=True)


def test_the_same_queue_declared_everywhere_at_once(cluster: Cluster, name: str) -> None:
    """Whoever comes first makes it; for the others it exists, with the same arguments or not."""
    channels = [node.channel() for node in cluster for _ in range(3)]
    done: list[Any] = []
    for number in range(ROUNDS):
        queue = f"{name}-{number}"
        for channel in channels:
            channel._impl.queue_declare(queue, callback=done.append)
        while len(done) < len(channels):
            for channel in channels:
                channel.connection.process_data_events(0.01)
        done.clear()
        channels[0].basic_publish("", queue, b"x")
        assert [waiting(channel, queue) for channel in channels] == [1] * len(channels)


@pytest.mark.parametrize(("here", "there"), PAIRS)
def test_users_vhosts_and_permissions(cluster: Cluster, name: str, here: int, there: int) -> None:
    one, other = cluster[here], cluster[there]
    user, vhost = f"user-{name}", f"vhost-{name}"
    one.add_user(user, "secret")
    one.control("add_vhost", name=vhost, description=None, tags=None)
    assert_not_allowed(other, user, vhost)
    one.control("set_permissions", user=user, vhost=vhost, configure=".*", write=".*", read="^readable$")
    connection = other.connect(user, "secret", virtual_host=vhost)
    channel = connection.channel()
    channel.queue_declare("q")
    code, text = refusal(channel.basic_get, "q")
    assert code == 403
    assert f"queue 'q' in vhost '{vhost}' refused for user '{user}'" in text
    one.control("set_permissions", user=user, vhost=vhost, configure="", write=".*", read=".*")
    channel = connection.channel()
    assert channel.basic_get("q") == (None, None, None)
    assert refusal(channel.queue_declare, "other")[0] == 403
    one.control("clear_permissions", user=user, vhost=vhost)
    assert_not_allowed(other, user, vhost)
    one.control("set_permissions", user=user, vhost=vhost, configure=".*", write=".*", read=".*")
    connection = other.connect(user, "secret", virtual_host=vhost)
    one.control("delete_vhost", name=vhost)
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        while True:
            connection.process_data_events(5)
    assert caught.value.reply_code == 320
    one.control("delete_user", name=user)
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        other.connect(user, "secret")


def assert_not_allowed(node: Member, user: str, vhost: str) -> None:
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match=f"access to vhost '{vhost}' refused"):
        node.connect(user, "secret", virtual_host=vhost)


@pytest.mark.parametrize(("here", "there"), PAIRS)
def test_policies_and_parameters(cluster: Cluster, name: str, here: int, there: int) -> None:
    one, other = cluster[here], cluster[there]
    for number in range(ROUNDS):
        one.control(
            "set_policy", vhost="/", name=name, pattern="^none$", apply_to="queues", priority=number,
            definition={"max-length": number + 1}, operator=False,
        )  # fmt: skip
        (policy,) = [one for one in other.control("list_policies", vhost="/", operator=False) if one["name"] == name]
        assert policy["priority"] == number
        one.control("set_global_parameter", name=name, value=number)
        found = {one["name"]: one["value"] for one in other.control("list_global_parameters")}
        assert found[name] in (number, str(number))
    one.control("clear_policy", vhost="/", name=name, operator=False)
    assert name not in [one["name"] for one in other.control("list_policies", vhost="/", operator=False)]
