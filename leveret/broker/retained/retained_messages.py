"""Keeps retained messages, and finds them by topic filter.

**One command at a time.** What publishers of this node want kept gathers here, the last message of each topic only, and
is proposed in one command for all of them. While that is under way, the next gathers. So a publisher that sends ten
thousand retained messages a second to one topic costs one row in each command, and many topics make larger commands,
not more. There is never an older message of a topic under way behind a newer one.

**What a subscriber finds** is what the cluster has agreed on, and above that what this node was given and is not agreed
on yet. Otherwise a message would be missed by a subscriber of this node whose subscription came into force between the
delivery of the message to the subscriptions that were there and the agreement on it. (A subscriber of another node can
miss it in the same moment. Its subscription is agreed on, too: it finds everything that was agreed on before.) If the
agreement fails, the publisher is told, and the message is no longer found.

**Without a majority** nothing new is kept: publishers are refused after `operation_timeout`, as all who change
metadata. What is kept is found as before.

**Expiry.** A message is not found any more when its time is over, by the clock of the node that looks. The leader has
expired messages deleted.

**Bounds.** `CROWDED_BYTES` may wait before publishers are held back (`is_crowded`), and `WAITING_BYTES_MAX` before
messages are refused. The limits of a vhost are in `Limits`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.base.timers import Timers
from leveret.metadata.model.refusals import Refusal, no_vhost
from leveret.metadata.mqtt.commands import KeepRetained, RetainedRow
from leveret.metadata.mqtt.events import RetainedRefused
from leveret.protocol.mqtt.topic_index import TopicIndex
from leveret.protocol.mqtt.topics import matches

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.metadata.mqtt.records import RetainedMessage
    from leveret.metadata.store import Applied

ROWS_MAX: Final = 5_000  # In one command.
BYTES_MAX: Final = 1 << 20  # In one command, unless one message alone has more.
CROWDED_BYTES: Final = 4 << 20
WAITING_BYTES_MAX: Final = 32 << 20
ROW_OVERHEAD: Final = 100  # Bytes that a message counts beside its own.
RETRY_MS: Final = 1_000  # Before expired messages are proposed again for deletion.

Then = Callable[[Refusal | None], None]
Place = tuple[str, str]  # A vhost and a topic.


class Limits(NamedTuple):
    """The retained messages that a vhost may have, their bytes, and the bytes of one message."""

    messages_max: int = 1_000_000
    bytes_max: int = 256 << 20
    message_bytes_max: int = 1 << 20


class _Waiting:
    """The last message of a topic that waits for agreement; None deletes the one that is kept."""

    __slots__ = ("message", "size", "thens")

    def __init__(self, message: RetainedMessage | None, size: int, thens: list[Then]) -> None:
        self.message = message
        self.size = size
        self.thens = thens


class RetainedMessages:
    """The retained messages of all vhosts, as this node sees them."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.limits = Limits()
        self.indexes: dict[str, TopicIndex[RetainedMessage]] = {}  # By vhost: what is agreed on.
        self.gathered: dict[Place, _Waiting] = {}
        self.proposed: dict[Place, _Waiting] = {}  # In the command that is under way.
        self.waiting_bytes = 0
        self.refused = 0  # Messages that were not kept.
        self.expiring: Timers[Place] = Timers()
        self.is_sweeping = False
        for vhost, message in broker.metadata.retained:
            self._put(vhost, message)

    # -- For sessions --------------------------------------------------------------------------------------------

    def keep(self, vhost: str, topic: str, message: RetainedMessage | None, then: Then) -> None:
        """Keep a message as the last one of its topic; None deletes the one that is kept. `then` gets None when the
        cluster has agreed, or a refusal. If a later message of the topic overtakes it, that one's fate counts."""
        size = ROW_OVERHEAD + len(topic) + (0 if message is None else message.size)
        problem = self._problem(vhost, message, size)
        if problem is not None:
            self.refused += 1
            then(problem)
            return
        waiting = self.gathered.get((vhost, topic))
        if waiting is None:
            self.gathered[vhost, topic] = _Waiting(message, size, [then])
        else:
            self.waiting_bytes -= waiting.size
            waiting.message, waiting.size = message, size
            waiting.thens.append(then)
        self.waiting_bytes += size

    def _problem(self, vhost: str, message: RetainedMessage | None, size: int) -> Refusal | None:
        if vhost not in self.broker.metadata.vhosts:
            return no_vhost(vhost)
        if message is not None and message.size > self.limits.message_bytes_max:
            return Refusal(406, f"a retained message has at most {self.limits.message_bytes_max} bytes")
        if self.waiting_bytes + size > WAITING_BYTES_MAX:
            return Refusal(406, "too many retained messages wait to be agreed on")
        return None

    def find(self, vhost: str, topic_filter: str) -> list[RetainedMessage]:
        """Return the messages of all topics that a valid filter matches, without those that have expired."""
        return [message for message in self.walk(vhost, topic_filter) if message is not None]

    def walk(self, vhost: str, topic_filter: str) -> Iterator[RetainedMessage | None]:
        """Yield what `find` returns, each message as it is when it is come to. Messages can be kept and deleted
        meanwhile. None: nothing was found, and the caller may want a rest."""
        waiting = [topic for where, topic in {**self.proposed, **self.gathered} if where == vhost]
        seen = set()
        for topic in waiting:
            if matches(topic_filter, topic):
                seen.add(topic)
                yield self._current(vhost, topic)
            else:
                yield None
        index = self.indexes.get(vhost)
        if index is None:
            return
        for topic, message in index.find(topic_filter):
            if topic in seen:
                yield None
            elif self.gathered or self.proposed:
                yield self._current(vhost, topic)
            else:
                yield self._unless_expired(message)

    def _current(self, vhost: str, topic: str) -> RetainedMessage | None:
        """Return the message of a topic, as it will be when what waits is agreed on."""
        waiting = self.gathered.get((vhost, topic)) or self.proposed.get((vhost, topic))
        return self._unless_expired(
            self.broker.metadata.retained.get(vhost, topic) if waiting is None else waiting.message
        )

    def _unless_expired(self, message: RetainedMessage | None) -> RetainedMessage | None:
        return None if message is None or 0 < message.expires_ms <= self.broker.wall_ms else message

    def is_crowded(self) -> bool:
        """Return whether so much waits for agreement that publishers of retained messages should wait."""
        return self.waiting_bytes > CROWDED_BYTES

    # -- Agreement -----------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Called in each turn: propose what has gathered, unless a command is under way."""
        if self.proposed or not self.gathered:
            return
        rows: list[RetainedRow] = []
        size = 0
        for place, waiting in self.gathered.items():
            size += waiting.size
            if rows and (size > BYTES_MAX or len(rows) == ROWS_MAX):
                break
            rows.append(RetainedRow(*place, waiting.message))
            self.proposed[place] = waiting
        for place in self.proposed:
            del self.gathered[place]
        limits = self.limits
        self.broker.propose(KeepRetained(tuple(rows), limits.messages_max, limits.bytes_max), self._on_agreed)

    def _on_agreed(self, applied: Applied) -> None:
        done, self.proposed = self.proposed, {}
        full = {(one.vhost, one.topic) for one in applied.events if isinstance(one, RetainedRefused)}
        for place, waiting in done.items():
            self.waiting_bytes -= waiting.size
            refused = applied.refused
            if refused is None and place in full:
                refused = Refusal(406, f"vhost '{place[0]}' has reached its limit of retained messages")
            self.refused += refused is not None
            for then in waiting.thens:
                then(refused)

    def on_changed(self, vhost: str, topic: str) -> None:
        """The cluster has agreed on another message for a topic, or on none."""
        message = self.broker.metadata.retained.get(vhost, topic)
        if message is not None:
            self._put(vhost, message)
            return
        self.expiring.clear((vhost, topic))
        index = self.indexes.get(vhost)
        if index is not None:
            index.remove(topic)
            if not len(index):
                del self.indexes[vhost]

    def _put(self, vhost: str, message: RetainedMessage) -> None:
        index = self.indexes.get(vhost)
        if index is None:
            index = self.indexes[vhost] = TopicIndex()
        index.put(message.topic, message)
        if message.expires_ms:
            self.expiring.move((vhost, message.topic), message.expires_ms)
        else:
            self.expiring.clear((vhost, message.topic))

    # -- Expiry --------------------------------------------------------------------------------------------------

    def lead(self) -> None:
        """Called in each tick at the leader: have expired messages deleted."""
        if self.is_sweeping:
            return
        due = self.expiring.due(self.broker.wall_ms)
        if not due:
            return
        retained, rows = self.broker.metadata.retained, []
        for vhost, topic in due:
            message = retained.get(vhost, topic)
            if message is not None:
                rows.append(RetainedRow(vhost, topic, None, message.expires_ms))
        for row in rows[ROWS_MAX:]:
            self.expiring.set((row.vhost, row.topic), row.expires_ms)
        self._delete_expired(tuple(rows[:ROWS_MAX]))

    def _delete_expired(self, rows: tuple[RetainedRow, ...]) -> None:
        def on_agreed(applied: Applied) -> None:
            self.is_sweeping = False
            if applied.refused is not None:
                for row in rows:
                    self.expiring.set((row.vhost, row.topic), self.broker.wall_ms + RETRY_MS)

        self.is_sweeping = True
        self.broker.propose(KeepRetained(rows, self.limits.messages_max, self.limits.bytes_max), on_agreed)
