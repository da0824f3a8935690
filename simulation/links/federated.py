"""Federation links through everything that a run does to nodes and links: nothing is lost or doubled.

    python -m simulation --federation --seed 7 --nodes 3 [--mirrored] [--ailing] [--drained] [--trace] [--count 20]

A run as any other, in which two exchanges of the cluster take messages from two others: one over TCP between any two
nodes, one over pipes within the node that runs the link. Publishers at all nodes publish to the upstream exchanges, and
a queue is bound to each downstream one, from which nobody takes. Meanwhile bindings come and go, and operators restart
links.

What must hold, beside one worker (see `linked`):

    no loss      in the end, what was routed to a link's queue upstream, and told to be safe, is in the queue downstream
    no double    in the end, nothing is in a queue downstream twice
    at work      in quiet times each link runs at one node, and its queue upstream is empty
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from leveret.metadata.federation.links import link_key
from leveret.metadata.model.commands import Bind, DeclareExchange, DeclareQueue, SetParameter, SetPolicy, Unbind
from simulation.links.linked import KEYS, NEAR, Place, Source
from simulation.links.shovelled import NAMES, ShovelledWorld

if TYPE_CHECKING:
    from leveret.base.json_values import Json
    from leveret.metadata.model.commands import Command
    from leveret.metadata.shovel.records import WorkKey


class FederatedWorld(ShovelledWorld):
    """A run with federation links in place of shovels."""

    def sources(self) -> Collection[Source]:
        return [Source(NEAR, f"up {name}", False) for name in NAMES]

    def set_up(self) -> None:
        names = [machine.node_name for machine in self.machines]
        if self.plan.mirrored:
            self.order(NEAR, SetPolicy("/", "moved", "^(federation: |to )", "queues", 9, {"ha-mode": "all"}))
            self.run_for(1.0)
        for number, name in enumerate(NAMES):
            uris: Json = self.uris_of(NEAR) if number == 0 else "amqp://"
            upstream: Json = {"uri": uris, "exchange": f"up {name}", "reconnect-delay": 0.3, "prefetch-count": 20}
            for command in (
                DeclareExchange("/", f"up {name}", "topic"),
                DeclareExchange("/", f"down {name}", "topic"),
                DeclareQueue("/", f"to {name}", node=names[number % len(names)]),
                Bind("/", f"down {name}", "queue", f"to {name}", "#"),
                SetParameter("federation-upstream", "/", name, upstream),
                SetPolicy("/", f"p {name}", f"^down {name}$", "exchanges", 9, {"federation-upstream": name}),
            ):
                self.order(NEAR, command)
                self.run_for(0.5)

    def meddling(self, name: str) -> Command:
        """An operator restarts a link, or a binding comes or goes."""
        key, source, target = f"key {self.links_rng.randrange(KEYS)}", f"down {name}", f"to {name}"
        made, removed = Bind("/", source, "queue", target, key), Unbind("/", source, "queue", target, key)
        return self.links_rng.choice((super().meddling(name), made, removed))

    def key_of(self, name: str) -> WorkKey:
        return link_key("/", "exchange", f"down {name}", name, f"up {name}")

    def taken_from(self, name: str) -> Place:
        cluster = self.nodes_of(NEAR)[0].broker.cluster_name
        return Place(NEAR, f"federation: up {name} -> {cluster}:down {name}")

    def needed(self, name: str) -> list[str]:
        return [f"to {name}"]
