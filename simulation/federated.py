"""Federation links through everything that a run does to nodes and links: nothing is lost or doubled.

    python -m simulation.federated --seed 7 --nodes 3 [--mirrored] [--trace] [--count 20]

A run as any other, in which two exchanges of the cluster take messages from two others: one over TCP between any two
nodes, one over pipes within the node that runs the link. Publishers at all nodes publish to the upstream exchanges, and
a queue is bound to each downstream one, from which nobody takes. Meanwhile bindings come and go, and operators restart
links.

What must hold:

    one worker   a node has a worker only under the epoch that it has applied, and only if the assignment names it
    no loss      in the end, what was routed to a link's queue upstream, and told to be safe, is in the queue downstream
    no double    in the end, nothing is in a queue downstream twice
    at work      in quiet times each link runs at one node, and its queue upstream is empty
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from leveret.metadata.federation.links import link_key
from leveret.metadata.model.commands import Bind, DeclareExchange, DeclareQueue, SetParameter, SetPolicy, Unbind
from leveret.metadata.shovel.commands import RestartWork
from leveret.protocol.frames import content
from leveret.protocol.properties import Properties, encode
from simulation import own_command
from simulation.core.machine import AMQP_PORT
from simulation.plan import Plan
from simulation.shovelled import FRAME_MAX, SHOVELS, Publisher, ShovelledWorld
from simulation.world import World

if TYPE_CHECKING:
    from leveret.base.json_values import Json
    from leveret.metadata.model.commands import Command
    from leveret.metadata.shovel.records import WorkKey
    from leveret.node.federation.worker import FederationWorker
    from simulation.core.machine import Machine


def key_of(name: str) -> WorkKey:
    return link_key("/", "exchange", f"down {name}", name, f"up {name}")


class FederatedWorld(ShovelledWorld):
    """A run with federation links."""

    def _begin(self) -> None:
        World._begin(self)  # Without shovels.
        names = [machine.node_name for machine in self.machines]
        if self.plan.mirrored:
            self.operators.order(SetPolicy("/", "moved", "^(federation: |to )", "queues", 9, {"ha-mode": "all"}))
            self.run_for(1.0)
        hosts: list[Json] = [f"amqp://guest:guest@{machine.name}:{AMQP_PORT}" for machine in self.machines]
        for number, name in enumerate(SHOVELS):
            for command in (
                DeclareExchange("/", f"up {name}", "topic"),
                DeclareExchange("/", f"down {name}", "topic"),
                DeclareQueue("/", f"to {name}", node=names[number % len(names)]),
                Bind("/", f"down {name}", "queue", f"to {name}", "#"),
                SetParameter("federation-upstream", "/", name, self._upstream(name, hosts if number == 0 else "amqp://")),
                SetPolicy("/", f"p {name}", f"^down {name}$", "exchanges", 9, {"federation-upstream": name}),
            ):
                self.operators.order(command)
                self.run_for(0.5)
        self.run_for(2.0)
        self.scheduler.after(self.shovel_rng.random(), self._publish)
        self.scheduler.after(3.0, self._restart)

    def _upstream(self, name: str, uris: Json) -> Json:
        return {"uri": uris, "exchange": f"up {name}", "reconnect-delay": 0.3, "prefetch-count": 20}

    def _restart(self) -> None:
        """Now and then an operator restarts a link, or a binding comes or goes."""
        if self.is_over:
            return
        rng = self.shovel_rng
        self.scheduler.after(rng.choice((0.1, 0.5, 4.0)), self._restart)
        serving = [one for one in self.machines if one.serving and one.server is not None and one.loop is not None]
        if not serving:
            return
        machine, name, number = rng.choice(serving), rng.choice(SHOVELS), rng.randrange(3)
        key, source, target = f"key {number}", f"down {name}", f"to {name}"
        made, removed = Bind("/", source, "queue", target, key), Unbind("/", source, "queue", target, key)
        command: Command = rng.choice((RestartWork(*key_of(name)), made, removed))
        node = None if machine.server is None else machine.server.node
        if node is not None and machine.loop is not None:
            machine.loop.call_soon(node.propose, command, lambda applied: None)

    def _publish_one(self, publisher: Publisher, name: str, number: int) -> None:
        body = b"%d is moved" % number
        made = content(encode(Properties(delivery_mode=2), len(body)), body, FRAME_MAX)
        self.publish_to(publisher, f"up {name}", f"key {number % 3}", name, number, made)

    def observe(self, machine: Machine) -> None:
        World.observe(self, machine)
        node = None if machine.server is None else machine.server.node
        if node is None:
            return
        for key, worker in node.federation.workers.items():
            known = node.metadata.links.get(key)
            epoch = worker.assignment.epoch
            self.epochs.add(epoch)
            # What was applied in this very moment is compared before the next turn.
            is_present = known is not None and known.epoch == epoch and known.node == machine.node_name
            if not is_present and not node.federation.has_changed:
                self.fail(f"{machine.name} runs {key.name} under epoch {epoch}, and has applied {known}")

    def _unrest(self) -> str:
        for name in SHOVELS:
            if self._is_wiped(name):
                continue
            running: list[FederationWorker] = [
                worker
                for node in self._nodes()
                for key, worker in node.federation.workers.items()
                if key == key_of(name)
            ]
            if len(running) != 1 or running[0].life.value != "running":
                states = [(worker.life, worker.reason) for worker in running]
                return f"link {name} is run by {len(running)} nodes: {states}"
            queue = self._source(name)
            found = self.operators.leading(queue)
            if found is None:
                return f"nobody leads {queue}"
            left = found[2].ready_count + found[2].unacked_count
            if left:
                return f"{left} messages are left in {queue}: {running[0].status()}"
        return ""

    def _source(self, name: str) -> str:
        return f"federation: up {name} -> {self._nodes()[0].broker.cluster_name}:down {name}"

    def _is_wiped(self, name: str) -> bool:
        metadata = self._nodes()[0].metadata
        return self.ledger.has_lost_disks and ("/", f"to {name}") not in metadata.queues


def run(plan: Plan, traced: bool = False) -> FederatedWorld:
    """Raises Violation, with the command that replays it."""
    return own_command.play("federated", FederatedWorld, plan, traced)


if __name__ == "__main__":
    sys.exit(own_command.main("federated", FederatedWorld))
