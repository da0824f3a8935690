"""Celery tasks with results, over AMQP alone: no Redis, no database.

    python examples/celery_tasks.py
"""

import os
import subprocess
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path

from celery import Celery

import leveret.testing

app = Celery("shop", broker=os.environ.get("AMQP_URL"), backend="rpc://")
app.conf.update(
    broker_transport_options={"confirm_publish": True},  # A task that was sent is on disk.
    task_acks_late=True,  # A task is done when it has ended, not when it begins.
    broker_connection_retry_on_startup=True,
)


@app.task(name="shop.total", bind=True, max_retries=3)
def total(task, prices):
    if task.request.retries < 1:
        raise task.retry(countdown=0.1)  # As if a price list could not be reached.
    return {"sum": sum(prices), "retries": task.request.retries}


@contextmanager
def worker(url):
    """A process, as in production: celery -A celery_tasks worker."""
    command = [sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", "--pool", "solo", "--loglevel", "ERROR"]
    environment = {**os.environ, "AMQP_URL": url}
    process = subprocess.Popen(command, cwd=Path(__file__).parent, env=environment, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def main(url):
    app.conf.broker_url = url
    with worker(url):
        result = total.delay([5, 7, 9]).get(timeout=60)
        print(f"total: {result['sum']} after {result['retries']} retry")


if __name__ == "__main__":
    given = os.environ.get("AMQP_URL")
    with nullcontext() if given else leveret.testing.broker() as broker:
        main(given or broker.url)
