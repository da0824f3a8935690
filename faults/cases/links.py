"""Links that move messages from one broker to another: shovels and federation."""

from __future__ import annotations

from faults.cases.case import Case
from faults.cases.features import strike
from faults.cases.run import PROGRESS_S, Run
from faults.clients.amqp import Amqp
from faults.clients.consumer import Consumer
from faults.clients.publisher import Publisher
from faults.machines.cluster import TICK_S
from faults.machines.node import Node, NodeError, until
from leveret.protocol import methods as m

RECONNECT_S = 1


def _uri(node: Node) -> str:
    return f"amqp://guest:guest@{node.host}:{node.port}"


def _shovel(run: Run) -> None:
    """A shovel moves messages from one queue to another, both in this cluster, by way of any node."""
    run.cluster.mirror(run.prefix)
    source, target = f"{run.prefix}-source", f"{run.prefix}-target"
    for queue in (source, target):
        run.declare(queue)
    run.queues += [source, target]
    run.cluster.await_in_sync(run.queues)
    uris = [_uri(node) for node in run.cluster.nodes]
    ends = {"src-uri": uris, "src-queue": source, "dest-uri": uris, "dest-queue": target}
    run.cluster.set_parameter("shovel", run.prefix, {**ends, "reconnect-delay": RECONNECT_S})
    run.promise(source, kept=True, marked=True, settled=True)
    run.add(Publisher("p", run.folder, run.board, run.pick(), source))
    run.add(Consumer("c", run.folder, run.board, run.pick(), target))


def _upstream(run: Run) -> Node:
    (node,) = run.cluster.spares
    return node


def _federation(run: Run) -> None:
    """A broker of its own is the upstream of an exchange and of a queue of the cluster. All is published there and
    consumed here. The upstream has one node, so what it has confirmed must be on its disk."""
    upstream = _upstream(run)
    if not upstream.is_running:
        upstream.founder = upstream.host
        upstream.spawn()
        upstream.await_ready()
    exchange, bound, shared = (f"{run.prefix}-{name}" for name in ("exchange", "bound", "queue"))
    value = {"uri": _uri(upstream), "reconnect-delay": RECONNECT_S}
    run.cluster.set_parameter("federation-upstream", run.prefix, value)
    run.declare(shared, at=upstream)

    def declare_exchange(client: Amqp) -> None:
        client.call(m.ExchangeDeclare(exchange=exchange, type="direct", durable=True), m.ExchangeDeclareOk)

    def bind(client: Amqp) -> None:
        client.call(m.QueueBind(queue=bound, exchange=exchange, routing_key=bound), m.QueueBindOk)

    for at in (upstream, run.cluster.nodes[0]):
        run.call(declare_exchange, at)
    run.cluster.mirror(bound)
    run.cluster.mirror(shared, **{"federation-upstream": run.prefix})
    for queue in (bound, shared):
        run.declare(queue)
    run.call(bind)
    run.cluster.set_policy(exchange, {"federation-upstream": run.prefix}, "exchanges")
    run.queues += [bound, shared]
    run.cluster.await_in_sync(run.queues)
    until(lambda: _links_run(run), "the links run", PROGRESS_S)
    for queue in (bound, shared):
        run.promise(queue, kept=True, marked=True, settled=True)
        run.add(Consumer(f"c-{queue}", run.folder, run.board, run.pick(), queue))
    there = run.pick([upstream])
    run.add(Publisher("p-exchange", run.folder, run.board, there, bound, exchange=exchange))
    run.add(Publisher("p-queue", run.folder, run.board, there, shared))


def _links_run(run: Run) -> bool:
    try:
        return run.cluster.asked().links_run()
    except NodeError:
        return False


def _strike_an_end(run: Run) -> None:
    """Kills the upstream, cuts it off from one node or all, or does the like to a node here."""
    upstream = _upstream(run)
    what = run.rng.choice(("kill", "cut", "freeze", "here", "here"))
    if what == "here":
        strike(run)
        return
    with run.fault(f"{what} the upstream"):
        if what == "kill":
            upstream.kill()
            run.wait(0.0, 3.0)
            run.restart(upstream)
        elif what == "freeze":
            upstream.freeze()
            run.wait(TICK_S + 2.0)
            upstream.thaw()
        else:
            nodes = run.rng.sample(run.cluster.nodes, run.rng.choice((1, len(run.cluster.nodes))))
            run.cluster.cut([upstream], nodes)
            run.cluster.cut(nodes, [upstream])
            run.wait(2.0, TICK_S + 2.0)
            run.cluster.heal()


CASES = (
    Case(
        "shovel", "a shovel, its node and the masters killed and cut off", _shovel, strike, 20,
        plugins=("rabbitmq_shovel",),
    ),
    Case(
        "federation", "links of an exchange and a queue, their nodes and the upstream killed and cut off", _federation,
        _strike_an_end, 20, spare=1, plugins=("rabbitmq_federation",),
    ),
)  # fmt: skip
