"""A client that has logged in and entered a vhost: what it may do there, and what is its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.base.shared_values import NO_DICT

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue, Broker
    from leveret.broker.vhost import Vhost


class Login:
    """The identity of a client in one vhost, shared by its sessions."""

    __slots__ = ("broker", "client_id", "counts", "exclusive_queues", "id", "user", "vhost")

    def __init__(self, broker: Broker, user: str, vhost: Vhost, number: int, counts: bool = True) -> None:
        self.broker = broker
        self.user = user
        self.vhost = vhost
        self.id = f"{broker.node_name}.{number}"  # Outlives the client: exclusive queues are owned by it.
        self.counts = counts  # Against the limits of its user and vhost.
        self.exclusive_queues: dict[AnyQueue, None] = NO_DICT
        self.client_id = ""  # Of a client of MQTT: patterns of topic permissions can name it.

    def own(self, queue: AnyQueue) -> None:
        """The client has declared a queue that only it can use."""
        if not self.exclusive_queues:
            self.exclusive_queues = {}
        self.exclusive_queues[queue] = None

    def take_exclusive_queues(self) -> list[AnyQueue]:
        """The client is gone. Returns its exclusive queues, each to be deleted with `Broker.give_up`."""
        queues, self.exclusive_queues = self.exclusive_queues, NO_DICT
        return [queue for queue in queues if not queue.deleted]
