"""Celery: an app, a worker of several processes, and what its users do with them.

The tests of this file share a node, and a worker for each kind of app: one with classic queues, where Celery changes
the prefetch of a whole channel all the time and counts delays itself, and one with quorum queues, where it leaves
prefetch alone and lets messages pass from queue to queue, each with a time to live that is a power of two.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import TaskRevokedError
from kombu import Queue

from tests.support.members import free_port
from tests.support.servers import Server, until
from tests.system.clients.frameworks.celery_app import SECONDS
from tests.system.clients.frameworks.celery_worker import Held, Worker


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("celery")).start(free_port())
    yield server
    server.end()


@pytest.fixture(scope="module")
def worker(node: Server) -> Iterator[Worker]:
    worker = Worker(node.folder, node.url, "classic", "-Q", "celery", "-c", "2", "-E", "-O", "fair")
    try:
        yield worker.start()
    finally:
        worker.end()


@pytest.fixture(scope="module")
def native(node: Server) -> Iterator[Worker]:
    worker = Worker(node.folder, node.url, "quorum", "-P", "solo", "--without-mingle", "--without-gossip")
    try:
        yield worker.start()
    finally:
        worker.end()


# -- Tasks and results -------------------------------------------------------------------------------------------------


def test_results(worker: Worker) -> None:
    results = [worker.send("add", number, number) for number in range(100)]
    assert [result.get(timeout=SECONDS) for result in results] == [2 * number for number in range(100)]
    with pytest.raises(ValueError, match="too bad"):
        worker.run("fail", "too bad")


def test_retries(worker: Worker) -> None:
    assert worker.run("stubborn", 3, 0.05) == 3


def test_countdown_and_eta(worker: Worker) -> None:
    """The worker holds them back, and asks for more messages meanwhile: it changes the channel's prefetch each time."""
    begun = time.time()
    later = [worker.send("moment", countdown=0.5) for _ in range(8)]
    later.append(worker.send("moment", eta=datetime.now(UTC) + timedelta(seconds=0.5)))
    assert worker.run("add", 1, 1) == 2  # Not behind those that wait.
    assert all(result.get(timeout=SECONDS) - begun >= 0.45 for result in later)


def test_a_task_expires(worker: Worker) -> None:
    """As a message: Celery gives it that time to live."""
    result = worker.send("add", 1, 1, queue="nobody", expires=0.01)
    channel = worker.app.connection_for_read().default_channel
    until(lambda: not Queue("nobody", channel=channel).queue_declare(passive=True)[1], "the queue is empty")
    assert not result.ready()
    channel.connection.client.close()


# -- Watching and commanding -------------------------------------------------------------------------------------------


def watched(
    app: Celery, act: Callable[[], object], enough: Callable[[list[dict[str, Any]]], bool]
) -> list[dict[str, Any]]:
    """The events since `act`, until there are enough."""
    seen: list[dict[str, Any]] = []
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": seen.append})
        receiver.on_consume_ready = lambda *_, **__: act()
        for _ in receiver.itercapture(timeout=SECONDS):
            if enough(seen):
                return seen
    raise AssertionError(f"only {seen}")


def test_events(worker: Worker) -> None:
    sent: list[Any] = []

    def of_task(events: list[dict[str, Any]]) -> list[str]:
        return [event["type"] for event in events if sent and event.get("uuid") == sent[0].id]

    events = watched(
        worker.app, lambda: sent.append(worker.send("add", 2, 3)), lambda seen: "task-succeeded" in of_task(seen)
    )
    assert of_task(events) == ["task-received", "task-started", "task-succeeded"]
    assert {event["hostname"] for event in events if event["type"].startswith("task-")} == {worker.name}


def test_inspect(worker: Worker, name: str) -> None:
    assert worker.inspect.ping() == {worker.name: {"ok": "pong"}}
    held = Held(worker, name)
    held.wait()
    active = worker.inspect.active()[worker.name]
    assert [task["id"] for task in active] == [held.result.id]
    held.release()
    told: list[tuple[str, str]] = []
    assert (
        held.result.get(timeout=SECONDS, on_message=lambda one: told.append((one["task_id"], one["status"]))) is False
    )
    assert [state for task, state in told if task == held.result.id] == ["STARTED", "SUCCESS"]
    assert [queue["name"] for queue in worker.inspect.active_queues()[worker.name]] == ["celery"]


def test_revoke(worker: Worker, name: str) -> None:
    """One that waits for its time, and one that runs."""
    later = worker.send("add", 1, 1, countdown=0.5)
    until(lambda: worker.inspect.scheduled()[worker.name], "the worker has the task")
    assert "revoked" in worker.told("revoke", task_id=later.id)
    with pytest.raises(TaskRevokedError):
        later.get(timeout=SECONDS)
    held = Held(worker, name)
    held.wait()
    worker.told("revoke", task_id=held.result.id, terminate=True, signal="SIGKILL")
    with pytest.raises(TaskRevokedError):
        held.result.get(timeout=SECONDS)
    assert worker.run("add", 1, 1) == 2


def test_rate_limit(worker: Worker) -> None:
    assert "rate limit" in worker.told("rate_limit", task_name="moment", rate_limit="5/s")
    begun = time.time()
    last = max(result.get(timeout=SECONDS) for result in [worker.send("moment") for _ in range(4)])
    assert last - begun >= 0.5  # From the first one's beginning it may be less: that is late on a busy machine.
    worker.told("rate_limit", task_name="moment", rate_limit="0")


def test_consumers_are_added_and_cancelled(worker: Worker, name: str) -> None:
    waiting = worker.send("add", 1, 2, queue=name)
    worker.told("add_consumer", queue=name)
    assert waiting.get(timeout=SECONDS) == 3
    worker.told("cancel_consumer", queue=name)
    until(lambda: len(worker.inspect.active_queues()[worker.name]) == 1, "the queue is given up")
    worker.send("add", 1, 2, queue=name)
    with worker.app.connection_for_read() as connection:
        queue = Queue(name, channel=connection.default_channel)
        assert queue.queue_declare(passive=True)[1:] == (1, 0)


def test_prefetch_follows_the_pool(worker: Worker, name: str) -> None:
    """Two messages for each process, of the channel as a whole; more processes, more messages, and back again."""
    held = [Held(worker, name) for _ in range(10)]
    with worker.app.connection_for_read() as connection:
        queue = Queue("celery", channel=connection.default_channel)

        def waiting() -> int:
            return int(queue.queue_declare(passive=True)[1])

        for _ in range(2):
            held[0].wait()
        until(lambda: waiting() == 6, "four messages are out")
        worker.told("pool_grow", n=1)
        held[0].wait()
        until(lambda: waiting() == 4, "six messages are out")
    for one in held:
        one.release()
    for one in held:
        assert one.result.get(timeout=SECONDS) is False
    worker.told("pool_shrink", n=1)
    until(lambda: worker.inspect.stats()[worker.name]["prefetch_count"] == 4, "the prefetch is as before")


def test_priorities(worker: Worker) -> None:
    """Tasks that waited reach the worker by priority, not by age."""
    sent = {priority: worker.send("add", 1, priority, queue="ranked", priority=priority) for priority in (1, 9, 5)}
    ids = {result.id: priority for priority, result in sent.items()}

    def received(events: list[dict[str, Any]]) -> list[int]:
        return [ids[event["uuid"]] for event in events if event["type"] == "task-received" and event["uuid"] in ids]

    events = watched(
        worker.app, lambda: worker.told("add_consumer", queue="ranked"), lambda seen: len(received(seen)) == 3
    )
    assert received(events) == [9, 5, 1]
    worker.told("cancel_consumer", queue="ranked")


# -- Losses ------------------------------------------------------------------------------------------------------------


def test_a_process_of_the_pool_is_killed(worker: Worker, name: str) -> None:
    """The worker gives the message back, and it comes again."""
    held = Held(worker, name)
    os.kill(held.wait()["pid"], signal.SIGKILL)
    assert held.wait()["redelivered"]
    held.release()
    assert held.result.get(timeout=SECONDS) is True


def test_the_worker_is_killed(worker: Worker, name: str) -> None:
    held = Held(worker, name)
    assert not held.wait()["redelivered"]
    worker.kill()
    worker.start()
    assert held.wait()["redelivered"]
    held.release()
    assert held.result.get(timeout=SECONDS) is True


def test_the_node_restarts(worker: Worker, node: Server, name: str) -> None:
    """The worker connects again by itself, gets the task that it had in hand once more, and those that come then."""
    held = Held(worker, name, ignore_result=True)
    held.wait()
    port = node.port
    assert node.stop() == 0
    node.start(port)
    assert held.wait()["redelivered"]
    held.release()
    assert worker.run("add", 20, 22) == 42


# -- Delays by the broker ----------------------------------------------------------------------------------------------


def test_native_delays(native: Worker) -> None:
    """One second through one queue, three through two; the worker knows nothing of them until they are due."""
    begun = time.time()
    one = native.send("where", countdown=1)
    three = native.send("where", countdown=3)
    at_once = native.run("where")
    assert (at_once["exchange"], at_once["routing_key"]) == ("slow", "slow")
    assert native.inspect.scheduled() == {native.name: []}
    for result, seconds in ((one, 1), (three, 3)):
        came = result.get(timeout=SECONDS)
        assert seconds - 0.05 <= came["time"] - begun
        assert came["exchange"] == "celery_delayed_delivery"
        assert came["routing_key"] == ".".join(f"{seconds:028b}") + ".slow"
    assert at_once["time"] < came["time"]


def test_native_retry(native: Worker) -> None:
    assert native.run("stubborn", 1, 1) == 1
