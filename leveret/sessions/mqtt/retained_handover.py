"""Hands retained messages over to a new subscription, in portions.

A filter such as `#` can find a hundred thousand of them. They take part in the turn's budget for publishes to many
queues (`broker.fanout`): a turn hands over at most 256, or four megabytes, and the next ones come with the next turns,
in the order in which subscribers began to wait, and not while too much waits for the disk.

Each message is looked up when its turn comes. So one that was replaced meanwhile is handed over as it is now, and one
that was deleted is not. What is published meanwhile reaches the subscription as any message does, so the newest message
of a topic may come both ways. An older one comes after it only in the moment in which a message from another node is
here and the cluster has not agreed yet to retain it.

It ends with the last message, with the subscription, or with the connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker.delivery.batch import MESSAGE_OVERHEAD
from leveret.broker.session.session import arguments_of
from leveret.protocol.frames import END_BYTE, OVERHEAD
from leveret.protocol.mqtt.primitives import Cursor
from leveret.protocol.mqtt.properties import PUBLISH, Prop, read_properties, write_properties
from leveret.sessions.mqtt.messages import to_content
from leveret.sessions.mqtt.routing_keys import is_told_by, key_of
from leveret.storage.format.queue_block import EXPIRES, PERSISTENT

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue
    from leveret.metadata.mqtt.records import RetainedMessage
    from leveret.sessions.mqtt.connection import Connection

COPIES: Final = 256  # A message counts like so many copies, since a content is made and taken apart again for it,
COPY_BYTES: Final = 64  # and like one more for so many bytes of it.
HEADS_MAX: Final = 256
NO_PROPERTIES: Final = (b"", write_properties({}))
COPIES_UNWANTED: Final = 2  # One that was looked at, and does not match or has expired.


class RetainedHandover:
    """The retained messages that one filter of a client finds."""

    __slots__ = ("connection", "found", "heads", "topic_filter")

    def __init__(self, connection: Connection, topic_filter: str) -> None:
        self.connection = connection
        self.topic_filter = topic_filter
        self.heads: dict[int, bytes] = {}  # By size and QoS: the content up to the payload.
        vhost = connection.vhost
        assert vhost is not None
        self.found = connection.broker.retained.walk(vhost.name, topic_filter)

    def begin(self) -> None:
        """Hand over what fits into this turn; nothing if others wait."""
        if not self._is_under_way():
            return  # Stopped while the link to the queue's node was crowded.
        if self.connection.broker.fanout.left > 0:
            self.on_portion()
        else:
            self.connection.broker.fanout.waiting[self] = None

    def stop(self) -> None:
        self.connection.broker.fanout.waiting.pop(self, None)
        self.connection.subscriptions.handovers.pop(self.topic_filter, None)

    def _is_under_way(self) -> bool:
        return self.connection.subscriptions.handovers.get(self.topic_filter) is self

    def _wait(self, queue: AnyQueue) -> None:
        """For the next turn; for the next tick, if the link to another node takes no more."""
        if not queue.is_local and queue.is_crowded():
            self.connection.later.append((0, self.begin))
        else:
            self.connection.broker.fanout.waiting[self] = None

    def _queue(self) -> AnyQueue | None:
        """The queue of the subscription, which another SUBSCRIBE may have changed; None if there is none any more."""
        connection, parts = self.connection, self.connection.subscriptions
        options = parts.options.get(self.topic_filter)
        if connection.closed or connection.vhost is None or options is None:
            return None
        return connection.vhost.queues.get(parts.queue_of(self.topic_filter, options))

    def on_portion(self) -> None:
        fanout, queue = self.connection.broker.fanout, self._queue()
        if queue is None:
            self.stop()
            return
        begin = arguments_of(self.connection.limits.exchange, "")[:-2]  # Of a key, before the routing key.
        contents: list[bytes] = []
        keys: list[bytes] = []
        kind = size = 0
        for message in self.found:
            if message is None:
                fanout.left -= COPIES_UNWANTED
            else:
                key = key_of(message.topic)
                content, its_kind = self._content(message, key)
                if contents and its_kind != kind:
                    queue.enqueue(contents, keys, kind, size, None)
                    contents, keys, size = [], [], 0
                kind = its_kind
                contents.append(content)
                told = key.encode()
                keys.append(b"%b%c%b" % (begin, len(told), told))
                size += len(content) + MESSAGE_OVERHEAD
                fanout.left -= COPIES + len(content) // COPY_BYTES
            if fanout.left <= 0:
                break
        else:
            self.stop()
        if contents:
            queue.enqueue(contents, keys, kind, size, None)
        if fanout.left <= 0 and self._is_under_way():
            self._wait(queue)

    def _content(self, message: RetainedMessage, key: str) -> tuple[bytes, int]:
        """The content of a message, and its kind. For messages that differ in nothing but topic and payload, what comes
        before the payload is made once for each size."""
        size, frame_max = len(message.payload), self.connection.limits.frame_max
        is_plain = message.properties in NO_PROPERTIES and not message.expires_ms and is_told_by(key, message.topic)
        head = self.heads.get(size << 2 | message.qos) if is_plain else None
        if head is not None:
            return b"".join((head, message.payload, END_BYTE)), PERSISTENT if message.qos else 0
        content, kind = self._new_content(message)
        if is_plain and 0 < size <= frame_max - OVERHEAD and len(self.heads) < HEADS_MAX:
            self.heads[size << 2 | message.qos] = content[: -size - 1]
        return content, kind

    def _new_content(self, message: RetainedMessage) -> tuple[bytes, int]:
        data, now_ms = message.properties, self.connection.broker.wall_ms
        properties = read_properties(Cursor(data, 0, len(data)), PUBLISH) if data else {}
        kind = PERSISTENT if message.qos else 0
        if message.expires_ms:
            properties[Prop.MESSAGE_EXPIRY] = max(-(-(message.expires_ms - now_ms) // 1_000), 1)
            kind |= EXPIRES
        frame_max = self.connection.limits.frame_max
        content = to_content(
            message.topic, message.payload, message.qos, properties, frame_max, now_ms, retained=True
        )
        return content, kind
