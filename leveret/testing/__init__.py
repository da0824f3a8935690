"""Public: a real broker for tests, ready in milliseconds once its modules are loaded, which takes 0.25 s.

    import leveret.testing

    with leveret.testing.broker() as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        ...
        broker.admin.queues()                        # what leveretctl lists, with types
        with broker.faults.refuse_publishes():       # every publish is answered with basic.nack
            ...
        broker.kill(); broker.start()                # the same port, the same data

It is the broker that `leveret server` runs, at free ports, with its data in a temporary folder, and user guest. Nothing
is a mock: a client cannot tell the difference, and a confirmed message is there after `kill`.

*Inside* (the default) it runs in a thread of the test's process, with an event loop of its own, so that a test may
block or not. *Beside*, it is a process: for tests that keep the interpreter busy, fork, or need a real kill -9. Both
are controlled in the same way, through the control calls of leveretctl.

One thing differs from a broker in production: nothing is synced to disk, unless `sync=True`. Syncs would be most of the
time of a start, and protect only from the loss of power: what was written survives the end of any process.

With pytest, use the fixture `leveret_broker`; see `leveret.testing.plugin`. The names in `__all__` are the public API,
the modules are not. This module imports the broker only when one is made, because pytest imports the plugin in every
run. Only tests and the demo import it; it imports all of the broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pathlib import Path

    from leveret.testing.admin import Admin, AdminError
    from leveret.testing.faults import Fault, Faults
    from leveret.testing.handle import Broker, Cluster, NotRunning

__all__ = ["Admin", "AdminError", "Broker", "Cluster", "Fault", "Faults", "NotRunning", "broker", "cluster"]

_HOMES = {
    "Admin": "admin",
    "AdminError": "admin",
    "Broker": "handle",
    "Cluster": "handle",
    "NotRunning": "handle",
    "Fault": "faults",
    "Faults": "faults",
}


def broker(
    *,
    where: Literal["inside", "beside"] = "inside",
    config: str = "",
    data: str | Path | None = None,
    sync: bool = False,
) -> Broker:
    """Makes a broker for `with` or `async with`, or for `start` and `stop`.

    `config`: lines as in rabbitmq.conf. `data`: a folder to keep; without one, the data is deleted when the broker is
    closed. `sync`: sync before a confirm, as a broker outside of tests does.
    """
    from leveret.testing.handle import Broker

    return Broker(where=where, config=config, data=data, sync=sync)


def cluster(
    nodes: int = 3, *, where: Literal["inside", "beside"] = "inside", config: str = "", sync: bool = False
) -> Cluster:
    """Makes a cluster of several brokers, for `with` or `async with`."""
    from leveret.testing.handle import Cluster

    return Cluster(nodes, where=where, config=config, sync=sync)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'leveret.testing' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"leveret.testing.{_HOMES[name]}"), name)
