"""A real broker for tests, ready in milliseconds once its modules are loaded, which takes a quarter of a second.

    import leveret.testing

    with leveret.testing.broker() as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        ...
        broker.admin.queues()                        # what leveretctl would list, typed
        with broker.faults.refuse_publishes():       # every publish is answered with basic.nack
            ...
        broker.kill(); broker.start()                # the same port, the same data

It is the very broker that `leveret server` runs, with ports that the system chose, data in a temporary folder, and user
guest. Nothing is a mock: a client cannot tell the difference, and a confirmed message is there after `kill`.

*Inside* (the default) it runs in a thread of the test's process, with an event loop of its own, so that a test may
block or not as it likes. *Beside*, it is a process: for tests that keep the interpreter busy, fork, or want a real kill
-9. Both answer to the same handle, since both are asked over the control calls of leveretctl.

One thing differs from a broker that keeps data for a living: nothing is synced to disk, unless `sync=True`. That is
most of what a start would cost besides, and a sync protects from the loss of power alone: what was written outlives any
process.

With pytest, use the fixture `leveret_broker`; see `leveret.testing.plugin`. This module imports the broker only when
one is made, because pytest imports the plugin in every run, also in those that have no use for it.
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
    """A broker for `with` or `async with`, or for `start` and `stop`.

    `config`: lines as in rabbitmq.conf. `data`: a folder to keep; without one, the data goes when the broker is closed.
    `sync`: confirm only what a loss of power would not take, as a broker outside of tests does.
    """
    from leveret.testing.handle import Broker

    return Broker(where=where, config=config, data=data, sync=sync)


def cluster(
    nodes: int = 3, *, where: Literal["inside", "beside"] = "inside", config: str = "", sync: bool = False
) -> Cluster:
    """Several brokers that are one cluster, for `with` or `async with`."""
    from leveret.testing.handle import Cluster

    return Cluster(nodes, where=where, config=config, sync=sync)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'leveret.testing' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"leveret.testing.{_HOMES[name]}"), name)
