"""The pytest plugin, in runs of its own, and with the clients that people use."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from importlib import import_module
from typing import Any

import aio_pika
import pika
import pytest

from leveret.testing import Broker
from tests.support.servers import ROOT

pytest_plugins = ["pytester"]
kombu: Any = import_module("kombu")  # It has types, and not all of them.

HEAD = """
import pika, pytest

def connect(broker):
    return pika.BlockingConnection(pika.URLParameters(broker.url))
"""


def test_it_is_installed(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.pluginmanager.get_plugin("leveret") is import_module("leveret.testing.plugin")


def test_it_costs_nothing() -> None:
    """Every run of pytest imports it."""
    code = "import sys, pytest, leveret.testing.plugin\nprint([n for n in sys.modules if n.startswith('leveret')])"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['leveret', 'leveret.testing', 'leveret.testing.plugin']"


def test_what_the_readme_shows(pytester: pytest.Pytester) -> None:
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## In tests")[2]
    pytester.makepyfile(section.partition("```python\n")[2].partition("```")[0])
    pytester.runpytest("-p", "no:asyncio").assert_outcomes(passed=1)


# -- Each test finds it empty --------------------------------------------------------------------------------------


def test_each_test_finds_it_empty(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        HEAD
        + """
ports = set()

@pytest.fixture(scope="session")
def connection(leveret_server):
    connection = connect(leveret_server)
    yield connection
    connection.close()

@pytest.mark.parametrize("number", range(3))
def test_declares(leveret_broker, connection, number):
    assert leveret_broker.admin.queues() == []
    channel = connection.channel()
    channel.queue_declare("q", durable=bool(number % 2))
    channel.basic_publish("", "q", b"x")
    leveret_broker.admin.add_user("ann", "x")
    ports.add(leveret_broker.port)

def test_troubles(leveret_broker):
    leveret_broker.faults.refuse_publishes()
    leveret_broker.faults.refuse_connections()
    leveret_broker.faults.raise_alarm("disk")

def test_kills(leveret_broker, connection):
    connection.channel().confirm_delivery()
    leveret_broker.faults.drop_connections()
    leveret_broker.kill()

def test_is_as_new(leveret_broker):
    channel = connect(leveret_broker).channel()
    channel.queue_declare("q")
    channel.confirm_delivery()
    channel.basic_publish("", "q", b"x")
    assert {leveret_broker.port} == ports
    channel.connection.close()

def test_without():
    pass
"""
    )
    result = pytester.runpytest("-p", "no:cacheprovider", "-p", "no:asyncio")
    # The connection that all share was dropped on purpose, so that its end is an error.
    result.assert_outcomes(passed=7, errors=1)
    result.stdout.fnmatch_lines(["*ConnectionWrongStateError*"])


def test_scope_and_place(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nleveret_scope = module\nleveret_where = beside\nleveret_config = default_user = ann")
    pytester.makeconftest("folders = []")  # Not ports: the system may give one again.
    body = """
import threading
from conftest import folders

def test_first(leveret_broker):
    assert leveret_broker.where == "%s" and leveret_broker.user == "ann"
    folders.append(leveret_broker.folder)

def test_second(leveret_broker):
    folders.append(leveret_broker.folder)
"""
    last = "\ndef test_third():\n    assert [len(set(folders)), len(set(folders[:2]))] == %s"
    pytester.makepyfile(test_a=body % "beside", test_b=body % "beside" + last % "[2, 1]")
    pytester.runpytest("-p", "no:asyncio").assert_outcomes(passed=5)
    pytester.makepyfile(test_c=body % "inside", test_d=body % "inside" + last % "[4, 2]")
    options = ("--leveret-scope=function", "--leveret-where=inside", "test_c.py", "test_d.py")
    pytester.runpytest("-p", "no:asyncio", *options).assert_outcomes(passed=5)


def test_bad_scope(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nleveret_scope = galaxy")
    pytester.makepyfile("def test_it(leveret_broker): ...")
    result = pytester.runpytest("-p", "no:asyncio")
    (result.stdout if result.ret != 4 else result.stderr).fnmatch_lines(["*leveret_scope must be one of session,*"])
    assert result.ret != 0


def test_the_log_of_a_failure(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nleveret_where = beside")
    pytester.makepyfile("def test_it(leveret_broker):\n    assert False")
    result = pytester.runpytest("-p", "no:asyncio")
    result.stdout.fnmatch_lines(["*log of leveret_broker*", "*Server startup complete*"])


def test_with_asyncio_and_xdist(pytester: pytest.Pytester) -> None:
    """A broker for each worker, and tests that are coroutines."""
    pytester.makeini("[pytest]\nasyncio_mode = auto")
    pytester.makepyfile(
        """
import aio_pika, pytest

@pytest.mark.parametrize("number", range(2))
async def test_it(leveret_broker, number):
    async with await aio_pika.connect_robust(leveret_broker.url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("the same name for all")
        await channel.default_exchange.publish(aio_pika.Message(b"%d" % number), queue.name)
        message = await queue.get()
        assert message.body == b"%d" % number
        assert leveret_broker.admin.queue(queue.name).messages_unacknowledged == 1
"""
    )
    pytester.runpytest_subprocess("-n", "2").assert_outcomes(passed=2)


# -- Clients -------------------------------------------------------------------------------------------------------


def test_pika(leveret_broker: Broker) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(leveret_broker.url))
    channel = connection.channel()
    channel.queue_declare("orders")
    channel.basic_publish("", "orders", b"one")
    assert channel.basic_get("orders", auto_ack=True)[2] == b"one"
    connection.close()


async def test_aio_pika_comes_back(leveret_broker: Broker) -> None:
    """A robust connection after a fault: connected again, and what it declared is declared again."""
    connection = await aio_pika.connect_robust(leveret_broker.url, reconnect_interval=0.01)
    async with connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("orders")
        again = asyncio.Event()
        connection.reconnect_callbacks.add(lambda *_: again.set())
        leveret_broker.admin.delete_all()
        leveret_broker.faults.drop_connections()
        await again.wait()
        async with queue.iterator() as messages:
            await channel.default_exchange.publish(aio_pika.Message(b"two"), "orders")
            async for message in messages:
                assert message.body == b"two"
                await message.ack()
                break


@pytest.mark.parametrize("transport", ["memory", "amqp"])
def test_kombu(leveret_broker: Broker, transport: str) -> None:
    """An application that was tested with kombu's make-believe broker can be tested with a real one: another URL."""
    url = "memory://" if transport == "memory" else leveret_broker.url
    received: list[Any] = []

    def on_task(body: Any, message: Any) -> None:
        received.append(body)
        message.ack()

    with kombu.Connection(url) as connection:
        queue = kombu.Queue("tasks", kombu.Exchange("tasks"), routing_key="t")
        connection.Producer(serializer="json").publish(
            {"n": 1}, exchange=queue.exchange, routing_key="t", declare=[queue]
        )
        with connection.Consumer(queue, callbacks=[on_task]):
            connection.drain_events(timeout=60)
    assert received == [{"n": 1}]


# -- Celery --------------------------------------------------------------------------------------------------------

SHOP = """
import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker

app = Celery("shop", backend="rpc://", broker_connection_retry_on_startup=True)

@app.task
def add(one, other):
    return one + other

@pytest.fixture(scope="session", autouse=True)
def configured(leveret_server):
    app.conf.broker_url = leveret_server.url
"""


def test_celery_declares_its_queue_in_each_test(pytester: pytest.Pytester) -> None:
    """kombu remembers what it has declared on a connection, for as long as that is open."""
    pytester.makepyfile(
        SHOP
        + """
@pytest.mark.parametrize("number", range(3))
def test_it_is_sent(leveret_broker, number):
    assert leveret_broker.admin.queues() == []
    add.delay(1, number)
    assert leveret_broker.admin.queue("celery").messages == 1
"""
    )
    pytester.runpytest_subprocess("-p", "no:asyncio").assert_outcomes(passed=3)


def test_a_worker_of_celery_for_all_tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        SHOP
        + """
@pytest.fixture(scope="session")
def worker(configured):
    with start_worker(app, perform_ping_check=False, pool="solo"):
        yield

@pytest.mark.parametrize("number", range(3))
def test_it_is_done(leveret_broker, worker, number):
    assert add.delay(1, number).get(timeout=60) == 1 + number
"""
    )
    pytester.runpytest_subprocess("-p", "no:asyncio").assert_outcomes(passed=3)


@pytest.mark.parametrize(("closed", "left"), [("kombu", 1), ("all", 0), ("none", 2)])
def test_which_connections_are_closed(pytester: pytest.Pytester, closed: str, left: int) -> None:
    pytester.makepyfile(
        HEAD
        + """
import kombu

@pytest.fixture(scope="session")
def connections(leveret_server):
    return [connect(leveret_server), kombu.Connection(leveret_server.url).connect()]

@pytest.mark.parametrize("number", range(2))
def test_who_is_there(leveret_broker, connections, number):
    found = [one.name for one in leveret_broker.admin.connections() if one.state == "running"]
    print(f"test {number} finds {len(found)} connections")
"""
    )
    pytester.makeini(f"[pytest]\nleveret_close = {closed}")
    result = pytester.runpytest("-p", "no:asyncio", "-s")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*test 0 finds 2 connections", f"*test 1 finds {left} connections"])
