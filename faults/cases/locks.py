"""Queues as locks, while masters stand still, are cut off and die."""

from __future__ import annotations

from faults.cases.case import Case
from faults.cases.run import Run
from faults.clients.lock import Holder, Resource, make_lock
from faults.machines.cluster import TICK_S

HOLDERS = 4


def _load(kind: str) -> Case:
    def load(run: Run) -> None:
        run.cluster.mirror(run.prefix)
        lock = f"{run.prefix}-lock"
        run.call(lambda client: make_lock(client, lock, kind))
        run.queues.append(lock)
        run.cluster.await_in_sync([lock])
        run.promises["locks"][lock] = {"fenced": True} if kind == "fenced" else {"exclusive": True}
        resource = Resource()
        for number in range(HOLDERS):
            seed = run.rng.randrange(1 << 30)
            at = [run.cluster.nodes[number % len(run.cluster.nodes)]]
            run.add(Holder(f"h{number}", run.folder, run.board, run.pick(at), lock, kind, seed, resource))

    return Case(f"lock-{kind}", f"a queue as a lock ({kind}), its master frozen, cut off, killed", load, _strike, 19)


def _strike(run: Run) -> None:
    node = run.master()
    what = run.rng.choice(("freeze", "cut", "mute", "deaf", "kill"))
    with run.fault(f"{what} {node.name}, the lock's master"):
        if what == "freeze":
            node.freeze()
        elif what == "kill":
            node.kill()
        else:
            others = [other for other in run.cluster.nodes if other is not node]
            if what != "deaf":
                run.cluster.cut([node], others)
            if what != "mute":
                run.cluster.cut(others, [node])
        run.wait(TICK_S + 2.0, TICK_S + 6.0, short=TICK_S + 2.0)
        run.cluster.heal()
        if node.is_frozen:
            node.thaw()
        run.restart(node)


CASES = tuple(_load(kind) for kind in ("message", "single-active", "exclusive", "fenced"))
