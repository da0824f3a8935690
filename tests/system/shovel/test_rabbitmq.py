"""RabbitMQ 3.10.8 as the other end of a shovel, in both directions. Skipped where it is not installed."""

from __future__ import annotations

from collections.abc import Iterator

import pika
import pytest

from benchmarks.ruler.brokers import RabbitMQ, prepared
from tests.support.servers import until
from tests.system.shovel.conftest import Site

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(RabbitMQ.program() is None, reason="RabbitMQ is not installed"),
]


class Rabbit:
    """A channel to a RabbitMQ that runs."""

    def __init__(self, port: int) -> None:
        self.url = f"amqp://guest:guest@127.0.0.1:{port}/%2F"
        self.connection = pika.BlockingConnection(pika.URLParameters(self.url))
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()

    def count(self, queue: str) -> int:
        return int(self.channel.queue_declare(queue, passive=True).method.message_count)


@pytest.fixture(scope="module")
def rabbit() -> Iterator[Rabbit]:
    with prepared(RabbitMQ) as broker:
        assert isinstance(broker, RabbitMQ)
        broker.start()
        site = Rabbit(broker.port)
        yield site
        site.connection.close()


def test_to_rabbitmq_and_back(here: Site, rabbit: Rabbit) -> None:
    bodies = here.fill(here.queue("a"), 500)
    rabbit.channel.queue_declare("b", durable=True)
    here.shovel(
        "there", src_uri="amqp://", src_queue="a", dest_uri=rabbit.url, dest_queue="b", dest_add_forward_headers=True
    )
    until(lambda: rabbit.count("b") == 500, "all to be there")
    until(lambda: here.count("a") == 0, "the source to be empty")
    assert here.statuses()["there"]["state"] == "running"
    here.shovel("back", src_uri=rabbit.url, src_queue="b", dest_uri="amqp://", dest_queue="c")
    until(lambda: here.count("c") == 500, "all to be back")
    until(lambda: rabbit.count("b") == 0, "RabbitMQ's queue to be empty")
    method, properties, body = here.channel.basic_get("c")
    assert method is not None and body == bodies[0]
    (told,) = properties.headers["x-shovelled"]
    assert told["shovel-name"] == "there" and properties.delivery_mode == 2


def test_a_queue_that_is_not_there_is_declared_and_exchanges_are_checked(here: Site, rabbit: Rabbit) -> None:
    here.fill(here.queue("a"), 5)
    here.shovel("s", src_uri="amqp://", src_queue="a", dest_uri=rabbit.url, dest_queue="fresh", src_delete_after=5)
    until(lambda: not here.statuses(), "its end")
    assert rabbit.count("fresh") == 5
    here.shovel("t", src_uri="amqp://", src_queue="a", dest_uri=rabbit.url, dest_exchange="none")
    until(lambda: here.statuses()["t"]["state"] == "terminated", "the fault to be told")
    assert "NOT_FOUND - no exchange 'none'" in here.statuses()["t"]["reason"]


def test_a_wrong_password_and_a_large_message(here: Site, rabbit: Rabbit) -> None:
    wrong = rabbit.url.replace("guest:guest", "guest:wrong")
    here.shovel("s", src_uri=wrong, src_queue="x", dest_uri="amqp://", dest_queue="y")
    until(lambda: here.statuses()["s"]["state"] == "terminated", "the fault to be told")
    assert "ACCESS_REFUSED" in here.statuses()["s"]["reason"] and "wrong" not in str(here.statuses())
    large = bytes(3_000_000)
    rabbit.channel.queue_declare("large", durable=True)
    rabbit.channel.basic_publish("", "large", large)
    here.shovel("t", src_uri=rabbit.url, src_queue="large", dest_uri="amqp://", dest_queue="z")
    until(lambda: here.count("z") == 1, "it to arrive")
    assert here.take("z") == [large]
