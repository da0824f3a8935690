"""Networks that part, lose packets and are slow."""

from __future__ import annotations

from faults.cases.case import Case
from faults.cases.run import Run


def _load(run: Run) -> None:
    run.add_queues()


def _load_and_names(run: Run) -> None:
    run.add_queues(2)
    # A node answers from its own copy that a queue exists or differs, and the copy may be old while links are cut.
    run.add_registrars(linearizable=False)


def _halves(run: Run) -> None:
    nodes = run.cluster.nodes
    side = run.rng.sample(nodes, run.rng.randrange(1, len(nodes)))
    with run.fault(f"{', '.join(node.name for node in side)} cut off from the others"):
        run.cluster.part(side)
        run.wait(10.0, 30.0, short=6.0)
        run.cluster.heal()


def _ring(run: Run) -> None:
    """Each node sees a majority, and no two see the same one."""
    nodes = list(run.cluster.nodes)
    run.rng.shuffle(nodes)
    near = len(nodes) // 4 or 1
    with run.fault("majorities ring: each node sees only its neighbours"):
        for place, node in enumerate(nodes):
            far = [
                other
                for at, other in enumerate(nodes)
                if min((at - place) % len(nodes), (place - at) % len(nodes)) > near
            ]
            run.cluster.cut([node], far)
        run.wait(10.0, 30.0, short=6.0)
        run.cluster.heal()


def _one_way(run: Run) -> None:
    node = run.master()
    others = [other for other in run.cluster.nodes if other is not node]
    is_mute = run.rng.random() < 0.5
    with run.fault(f"{node.name} {'reaches' if is_mute else 'hears'} no other node; the other direction works"):
        if is_mute:
            run.cluster.cut([node], others)
        else:
            run.cluster.cut(others, [node])
        run.wait(6.0, 15.0, short=6.0)
        run.cluster.heal()


def _lossy(run: Run) -> None:
    how = {"loss": 0.2, "delay_ms": 300.0, "jitter_ms": 100.0, "copies": 0.02}
    with run.fault("between nodes 20 % of packets are lost, others take 300 ± 100 ms, 2 % come twice"):
        run.cluster.degrade(run.cluster.nodes, **how)
        run.wait(20.0, 40.0, short=5.0)
        run.cluster.heal()


def _slow(run: Run) -> None:
    with run.fault("between nodes packets take 300 ± 100 ms and overtake each other"):
        run.cluster.degrade(run.cluster.nodes, delay_ms=300.0, jitter_ms=100.0)
        run.wait(20.0, 40.0, short=5.0)
        run.cluster.heal()


CASES = (
    Case("halves", "random sides cut off from each other, 10 s and 30 s", _load_and_names, _halves, 1),
    Case("ring", "five nodes, each of which sees only its neighbours", _load_and_names, _ring, 2, nodes=5),
    Case("one-way", "one direction of a node's links is cut", _load, _one_way, 3),
    Case("slow", "packets take 300 ± 100 ms and overtake each other", _load, _slow, 15),
    Case("lossy", "the same, 20 % of packets are lost and 2 % come twice", _load, _lossy, 15),
)
