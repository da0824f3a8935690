"""Passes QoS 2 messages of a shared subscription on to the queue of the member that is to have them.

A message of QoS 2 whose delivery to a member has begun is that member's: it must be completed when the member returns,
and must never go to another one ([MQTT-4.8.2-4], [MQTT-4.8.2-5]). The queue of the group cannot do that: what a member
has not acknowledged when its connection ends goes to the next. So, for a member whose session outlives its connection,
such a message is first put into the queue of the member's own session, and sent from there, as all its QoS 2 messages
are (see `deliveries`). It is settled in the group's queue when the other one has it safe.

    group's queue ──▶ member's consumer ──▶ own queue ──safe──▶ settled in the group's queue
                                                └──▶ PUBLISH, PUBREC, …

In the own queue, its exchange is the name of the subscription (`$share/GROUP/FILTER`), by which its options are found;
if the client has left the group meanwhile, it is sent all the same.

If the process dies before the own queue has it, the message goes to another member, and nobody has seen it. If it dies
between that and the settlement, both have it: this is the one moment in which a message can come twice, to another
member or to the same one, and a few milliseconds long. Not more is passed on than can be sent at once, so that the
others get the rest.

Members whose session ends with the connection get messages from the group's queue itself. What they have not
acknowledged goes to another member: it may come twice, rather than never.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.broker.delivery.batch import MESSAGE_OVERHEAD
from leveret.broker.delivery.confirms import Pending
from leveret.protocol.mqtt.reason_codes import Reason

if TYPE_CHECKING:
    from leveret.broker.delivery.unacked import Delivered
    from leveret.sessions.mqtt.connection import Connection

SHARED: Final = b"$share/"


class Passed(NamedTuple):
    """A message that is to be passed on: its delivery tag, and what is stored of it."""

    tag: int
    content: bytes
    key: bytes
    kind: int


class PassingOn(Pending):
    """Messages that were put into the member's own queue."""

    __slots__ = ("taken",)

    def __init__(self, passages: SharedDelivery, taken: list[Delivered]) -> None:
        super().__init__(passages, 1, 1)
        self.taken = taken


class SharedDelivery:
    """The messages of a client's shared subscriptions that are passed on."""

    __slots__ = ("connection", "gathered", "under_way")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.gathered: list[Passed] = []  # In this turn.
        self.under_way = 0  # Messages that the own queue has not delivered yet.

    def add(self, group: str, tag: int, content: bytes, key: bytes, kind: int) -> None:
        """Pass a message on at the end of this turn: a queue that hands out must not be changed meanwhile."""
        name = group.encode()
        self.gathered.append(Passed(tag, content, bytes((len(name),)) + name + key[key[0] + 1 :], kind))
        self.under_way += 1

    def on_delivered(self, keys: list[bytes]) -> None:
        """The own queue delivers messages with these keys."""
        self.under_way = max(self.under_way - sum(is_shared(key) for key in keys), 0)

    def flush(self) -> None:
        connection = self.connection
        session, vhost = connection.session, connection.vhost
        assert session is not None and vhost is not None
        gathered, self.gathered = self.gathered, []
        queue = vhost.queues.get(connection.subscriptions.own_queue)
        if queue is None:
            connection.end(Reason.ADMINISTRATIVE_ACTION, "a queue of the session was deleted")
            return
        for one in gathered:
            pending = PassingOn(self, session.unacked.take_range(one.tag, one.tag))
            queue.enqueue([one.content], [one.key], one.kind, len(one.content) + MESSAGE_OVERHEAD, pending)
            if not pending.waiting:
                self.on_complete(pending)

    def on_complete(self, pending: Pending) -> None:
        """The own queue has a message safe, or will not have it. The connection may be closed by now."""
        assert isinstance(pending, PassingOn)
        connection = self.connection
        session = connection.session
        assert session is not None
        if not pending.refused:
            session.acknowledge(pending.taken)
            return
        session.take_back(pending.taken)
        if not connection.closed:  # The message would come again at once, and be refused again.
            connection.end(Reason.SERVER_UNAVAILABLE, "the queue of the session takes no message")


def is_shared(key: bytes) -> bool:
    """The message with this key was passed on from the queue of a group."""
    return key.startswith(SHARED, 1)
