"""All links that there should be, kept by the leader.

Events tell which exchanges and queues to look at again: one that was declared or deleted, or all of a vhost whose
policies or upstreams have changed. `step` looks at some of them, so that a vhost with a hundred thousand queues does
not stop the node. When nothing is left to look at, `changes` compares what should be with what is assigned.

A node that does not lead forgets all of it, and looks at everything when it becomes the leader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.metadata.federation.links import Kind, Link, Upstreams, federates, links_of
from leveret.metadata.federation.parameters import COMPONENTS
from leveret.metadata.model import events as e
from leveret.metadata.rules.global_parameters import CLUSTER_NAME
from leveret.metadata.rules.policies import APPLIES, EXCHANGE, SPENT_MAX, Policies
from leveret.metadata.shovel.commands import LinkRow
from leveret.metadata.shovel.events import AssignmentChanged
from leveret.metadata.shovel.records import LINK, LINKS_MAX, WorkKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from leveret.metadata.store import Metadata

STEP_MAX: Final = 500  # Exchanges and queues that one step looks at, if they have no links.
LINK_COST: Final = 15  # A link takes as long as so many of them.
ROWS_MAX: Final = 200  # Changes that one command has.

Place = tuple[Kind, str, str]


class Plan:
    """The links that should be, and what has to be looked at for them. `cluster_name` tells the name of this one."""

    def __init__(self, metadata: Metadata, cluster_name: Callable[[], str]) -> None:
        self.metadata = metadata
        self.cluster_name = cluster_name
        self.policies = Policies(metadata)
        self.upstreams: Upstreams | None = None
        self.by_place: dict[Place, dict[WorkKey, Link]] = {}
        self.links = 0  # In all of them.
        self.federating: dict[str, None] = {}  # Vhosts with policies that make links.
        self.vhosts: dict[str, None] = {}  # To be looked at whole,
        self.places: dict[Place, None] = {}  # and these.
        self.is_new = True  # Nothing was looked at yet.
        self.is_changed = False  # What is assigned has to be compared.
        self.has_excess = False  # There are more links than a cluster can have.

    def forget(self) -> None:
        """This node does not lead."""
        if not self.is_new:
            self.is_new = True
            self.upstreams = None
            self.by_place, self.links = {}, 0
            self.federating, self.vhosts, self.places = {}, {}, {}
            self.is_changed = False

    # -- Events --------------------------------------------------------------------------------------------------

    def on_events(self, events: Iterable[e.Event]) -> None:
        """Note what has to be looked at again."""
        if self.is_new:
            return
        for event in events:
            match event:
                case e.ExchangeDeclared(spec=exchange) | e.ExchangeDeleted(spec=exchange):
                    if exchange.vhost in self.federating:
                        self.places["exchange", exchange.vhost, exchange.name] = None
                case e.QueueDeclared(spec=queue) | e.QueueDeleted(spec=queue):
                    if queue.vhost in self.federating:
                        self.places["queue", queue.vhost, queue.name] = None
                case e.PolicyChanged(vhost=vhost) | e.VhostAdded(name=vhost) | e.VhostDeleted(name=vhost):
                    self.vhosts[vhost] = None
                case e.ParameterChanged(component=component, vhost=vhost) if component in COMPONENTS:
                    self.upstreams = None
                    self.vhosts[vhost] = None
                case e.GlobalParameterChanged(name=name) if name == CLUSTER_NAME:
                    self.vhosts |= dict.fromkeys(self.metadata.vhosts)
                case AssignmentChanged(component=component) if component == LINK:
                    self.is_changed = True
                case _:
                    pass

    # -- Looking -------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Look at some of what has changed. Return whether all of it was looked at."""
        if self.is_new:
            self.is_new = False
            self.is_changed = True
            self.vhosts = dict.fromkeys(self.metadata.vhosts)
        if self.vhosts:
            self._expand(self.vhosts)
            self.vhosts = {}
        if not self.places:
            return True
        if self.upstreams is None:
            self.upstreams = Upstreams(self.metadata)
        cluster, spent = self.cluster_name(), self.policies.spent
        left = STEP_MAX
        while self.places and left > 0 and self.policies.spent - spent <= SPENT_MAX:
            place = next(iter(self.places))
            del self.places[place]
            left -= 1 + LINK_COST * self._look(place, self.upstreams, cluster)
        return not self.places

    def _expand(self, vhosts: dict[str, None]) -> None:
        """Look at all of these vhosts: what may have links now, and what had some. One pass does for all of them."""
        metadata = self.metadata
        self.places |= {place: None for place in self.by_place if place[1] in vhosts}
        of_exchanges: dict[str, None] = {}
        of_queues: dict[str, None] = {}
        for policy in metadata.policies.values():
            if policy.vhost in vhosts and federates(policy.definition):
                if policy.apply_to in APPLIES[EXCHANGE]:
                    of_exchanges[policy.vhost] = None
                if policy.apply_to != "exchanges":
                    of_queues[policy.vhost] = None
        self.federating = {vhost: None for vhost in self.federating if vhost not in vhosts} | of_exchanges | of_queues
        if of_exchanges:
            self.places |= {("exchange", at, name): None for at, name in metadata.exchanges if at in of_exchanges}
        if of_queues:
            self.places |= {("queue", at, name): None for at, name in metadata.queues if at in of_queues}

    def _look(self, place: Place, upstreams: Upstreams, cluster: str) -> int:
        """Find the links of one exchange or queue; return how many there are."""
        kind, vhost, name = place
        old = self.by_place.pop(place, {})
        found = links_of(self.metadata, self.policies, upstreams, kind, vhost, name, cluster)
        self.links += len(found) - len(old)
        if found:
            self.by_place[place] = found
        if found.keys() != old.keys() or any(old[key].digest != link.digest for key, link in found.items()):
            self.is_changed = True
        return len(found)

    # -- Comparing -----------------------------------------------------------------------------------------------

    def changes(self) -> tuple[LinkRow, ...]:
        """Return some of what has to change in the assignments; nothing if they are as they should be."""
        if not self.is_changed:
            return ()
        assigned = self.metadata.links
        wanted = {key: link for found in self.by_place.values() for key, link in found.items()}
        rows = [LinkRow(key.vhost, key.name, "") for key in assigned if key not in wanted]
        kept = len(assigned) - len(rows)
        new = sorted(key for key in wanted if key not in assigned)
        room = max(LINKS_MAX - kept, 0)
        self.has_excess = len(new) > room
        rows += [
            LinkRow(key.vhost, key.name, wanted[key].digest)
            for key in assigned
            if key in wanted and wanted[key].digest != assigned[key].digest
        ]
        rows += [LinkRow(key.vhost, key.name, wanted[key].digest) for key in new[:room]]
        if not rows:
            self.is_changed = False
        return tuple(rows[:ROWS_MAX])
