"""Counts connections and channels of vhosts and users that have limits.

The limits are metadata; what they limit is counted by each node for its own clients, and told to the others when it has
changed, once a turn. Only what is limited is told, so a cluster without limits pays nothing; and whether the node has
clients at all, because bulks of commands leave time to them. A node sees what others have with the delay of a link:
clients that come to several nodes at the same moment may exceed a limit by one for each other node, as with RabbitMQ. A
node that is down counts nothing, and tells anew when it is back.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

from leveret.links import frame_types
from leveret.links.proposals import BadFrame

if TYPE_CHECKING:
    from leveret.broker.broker import Broker

# What is counted is named by a letter and the vhost or user. The letters, and the limit that goes with each:
IN_VHOST = "v"
OF_USER = "u"
CHANNELS_OF_USER = "c"
ANY_CLIENT = "a"  # Of nothing in particular: 1 if the node has clients.


class ConnectionLimits:
    """The counts of one node, and those that other nodes have sent."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.own: Counter[str] = Counter()
        self.others: dict[str, dict[str, int]] = {}
        self.known: dict[str, int] | None = None  # The limits; None: to be looked up.
        self.told: dict[str, int] = {}

    def on_limits(self) -> None:
        """Vhosts or users have changed, and perhaps their limits."""
        self.known = None
        self.broker.linked[self] = None

    @property
    def limits(self) -> dict[str, int]:
        if self.known is None:
            self.known = self._look_up()
        return self.known

    def _look_up(self) -> dict[str, int]:
        limits: dict[str, int] = {}
        for vhost in self.broker.metadata.vhosts.values():
            limits[IN_VHOST + vhost.name] = vhost.limits.get("max-connections", -1)
        for user in self.broker.metadata.users.values():
            limits[OF_USER + user.name] = user.limits.get("max-connections", -1)
            limits[CHANNELS_OF_USER + user.name] = user.limits.get("max-channels", -1)
        return {name: limit for name, limit in limits.items() if limit >= 0}

    def on_connection(self, user: str, vhost: str, count: int) -> None:
        """A connection was opened (`count` 1) or closed (-1)."""
        self._add(IN_VHOST + vhost, count)
        self._add(OF_USER + user, count)

    def on_clients(self) -> None:
        """The first client of this node may have come, or the last one gone."""
        if bool(self.broker.clients) != (ANY_CLIENT in self.told):
            self.broker.linked[self] = None

    def on_channels(self, user: str, count: int) -> None:
        """A user has so many more channels; fewer, if `count` is negative."""
        totals = self.broker.totals
        if count > 0:
            totals.channels_opened += count
        else:
            totals.channels_closed -= count
        self._add(CHANNELS_OF_USER + user, count)

    def _add(self, name: str, count: int) -> None:
        self.own[name] += count
        if not self.own[name]:
            del self.own[name]
        if name in self.limits:
            self.broker.linked[self] = None

    def limit_reached(self, name: str) -> int | None:
        """Returns the limit if it is reached, else None."""
        limit = self.limits.get(name)
        if limit is None:
            return None
        count = self.own[name] + sum(each.get(name, 0) for each in self.others.values())
        return limit if count >= limit else None

    @property
    def has_clients(self) -> bool:
        """Whether this node has clients, or another one that it is linked with."""
        return bool(self.broker.clients) or any(ANY_CLIENT in each for each in self.others.values())

    # -- Other nodes ---------------------------------------------------------------------------------------------

    def _to_tell(self) -> dict[str, int]:
        counts = {name: self.own[name] for name in self.limits if name in self.own}
        if self.broker.clients:
            counts[ANY_CLIENT] = 1
        return counts

    def flush(self) -> None:
        """Send changed counts to the other nodes, at the end of a turn."""
        counts = self._to_tell()
        if counts != self.told:
            self.told = counts
            for peer in self.broker.client_ends:
                self._send(peer)

    def _send(self, peer: str) -> None:
        self.broker.node.send(peer, frame_types.CONNECTION_COUNTS, [json.dumps(self.told).encode()])

    def on_peer_up(self, peer: str) -> None:
        if self.told:
            self._send(peer)

    def on_peer_down(self, peer: str) -> None:
        self.others.pop(peer, None)

    def on_frame(self, peer: str, payload: bytes) -> None:
        """Raises `BadFrame`."""
        try:
            counts = json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise BadFrame(f"no census: {error}") from None
        if not isinstance(counts, dict) or not all(type(count) is int and count > 0 for count in counts.values()):
            raise BadFrame("a census that is no table of numbers")
        self.others[peer] = counts
