"""Transactions, direct reply-to and limits with clients and queues at different nodes."""

from __future__ import annotations

import pika
import pytest
from pika.exceptions import ProbableAccessDeniedError

from leveret.metadata.rules.passwords import SHA256, hash_password
from tests.support.consumer import get_all
from tests.support.members import Cluster
from tests.support.servers import until

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def test_a_transaction_over_queues_of_all_nodes(cluster: Cluster, name: str) -> None:
    names = [f"{name}-{number}" for number in range(3)]
    for node, queue in zip(cluster, names, strict=True):
        node.channel().queue_declare(queue, durable=True)
    channel, other = cluster[0].channel(), cluster[2].channel()
    channel.tx_select()
    channel.basic_publish("", names[1], b"in", PERSISTENT)
    channel.tx_commit()
    method, _, _ = channel.basic_get(names[1])
    for queue in names:
        channel.basic_publish("", queue, b"out", PERSISTENT)
    channel.basic_ack(method.delivery_tag)
    assert [get_all(other, queue) for queue in names] == [[], [], []]
    channel.tx_commit()
    assert [get_all(other, queue) for queue in names] == [[b"out"]] * 3


def test_an_answer_from_another_node(cluster: Cluster, name: str) -> None:
    answers: list[bytes] = []
    asker, server = cluster[0].channel(), cluster[1].channel()
    server.queue_declare(name)
    asker.basic_consume("amq.rabbitmq.reply-to", lambda *got: answers.append(got[3]), auto_ack=True)
    asker.confirm_delivery()
    asker.basic_publish("", name, b"question", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to"))
    _, properties, _ = server.basic_get(name, auto_ack=True)
    assert server.queue_declare(properties.reply_to, passive=True).method.consumer_count == 1
    server.basic_publish("", properties.reply_to, bytes(1 << 20))
    while not answers:
        asker.connection.process_data_events(1)
    assert answers == [bytes(1 << 20)]


def test_connections_of_a_user_at_all_nodes_count(cluster: Cluster, name: str) -> None:
    hashed = hash_password("secret", b"salt")
    cluster[0].control("add_user", name=name, password_hash=hashed, hashing=SHA256)
    cluster[0].control("set_permissions", user=name, vhost="/", configure="", write="", read="")
    cluster[0].control("set_user_limits", user=name, limits={"max-connections": 2})
    first = cluster[0].connect(name, "secret")
    cluster[1].connect(name, "secret")
    text = f"NOT_ALLOWED - connection refused for user '{name}': user connection limit (2) is reached"

    def is_refused() -> bool:
        """What one node has, others hear of in a moment."""
        try:
            cluster[2].connect(name, "secret").close()
        except ProbableAccessDeniedError as error:
            return text in str(error)
        return False

    until(is_refused, "the third is refused")
    first.close()
    until(lambda: not is_refused(), "there is room again")
    cluster[0].control("delete_user", name=name)
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        cluster[2].connect(name, "secret")
