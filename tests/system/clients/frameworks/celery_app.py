"""The Celery app of the tests: what `python -m celery -A tests.system.clients.frameworks.celery_app worker` runs.

Tests and tasks talk through queues of the same broker: a task that begins says so in one, and holds until something
comes through another, so nobody has to guess how long anything takes.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from celery import Celery, Task, signals
from kombu import Connection, Exchange, Queue

URL: Final = "LEVERET_TESTS_BROKER"
KIND: Final = "LEVERET_TESTS_CELERY"  # "classic" or "quorum".
SECONDS: Final = 60.0


def make(url: str, kind: str) -> Celery:
    """The app with its tasks. A quorum app delays natively: through exchanges and queues with a time to live."""
    app = Celery("leveret", broker=url, backend="rpc://")
    app.conf.update(
        accept_content=["json"],
        broker_connection_retry_on_startup=True,
        broker_transport_options={"confirm_publish": True},
        result_persistent=True,
        result_expires=600,
        task_track_started=True,
        worker_prefetch_multiplier=2,
        worker_cancel_long_running_tasks_on_connection_loss=False,
    )
    if kind == "quorum":
        app.conf.update(
            task_default_queue="slow",
            task_default_queue_type="quorum",
            task_default_exchange="slow",
            task_default_exchange_type="topic",
            task_default_routing_key="slow",
            broker_native_delayed_delivery_queue_type="quorum",
            worker_detect_quorum_queues=True,
        )
    else:
        app.conf.update(
            task_queues=[
                Queue("celery", Exchange("celery"), routing_key="celery"),
                Queue("ranked", Exchange("ranked"), routing_key="ranked", max_priority=9),
            ]
        )
    for name, function, options in TASKS:
        app.task(name=name, **options)(function)
    return app


# -- Tasks -------------------------------------------------------------------------------------------------------------


def add(x: int, y: int) -> int:
    return x + y


def fail(text: str) -> None:
    raise ValueError(text)


def stubborn(task: Task, times: int, pause_s: float) -> int:
    """Fails that many times; the number of the attempt that did not."""
    if task.request.retries < times:
        raise task.retry(countdown=pause_s, max_retries=times)
    return int(task.request.retries)


def hold(task: Task, begun: str, release: str) -> bool:
    """Says that it has begun, and ends when told; whether this was a redelivery."""
    redelivered = bool(task.request.delivery_info["redelivered"])
    with Connection(task.app.conf.broker_url) as connection:
        with connection.SimpleQueue(begun) as queue:
            queue.put({"pid": os.getpid(), "redelivered": redelivered})
        with connection.SimpleQueue(release) as queue:
            queue.get(timeout=SECONDS).ack()
    return redelivered


def moment() -> float:
    """When it ran."""
    return time.time()


def where(task: Task) -> dict[str, Any]:
    """How its message came."""
    told = task.request.delivery_info
    deaths = (task.request.headers or {}).get("x-death")
    return {"exchange": told["exchange"], "routing_key": told["routing_key"], "deaths": deaths, "time": time.time()}


LATE: Final = {"acks_late": True, "reject_on_worker_lost": True}
TASKS: Final[list[tuple[str, Callable[..., Any], dict[str, Any]]]] = [
    ("add", add, {}),
    ("fail", fail, {}),
    ("stubborn", stubborn, {"bind": True}),
    ("hold", hold, {"bind": True, **LATE}),
    ("moment", moment, {}),
    ("where", where, {"bind": True}),
]

# -- The worker's process ----------------------------------------------------------------------------------------------


@signals.worker_ready.connect  # type: ignore[untyped-decorator]
def _say_ready(**_: Any) -> None:
    sys.__stdout__.write("ready\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]


if URL in os.environ:
    app = make(os.environ[URL], os.environ[KIND])
