"""Collections of the records of MQTT clients, by vhost."""

from __future__ import annotations

from collections.abc import Iterator

from leveret.metadata.mqtt.records import ClientSession, RetainedMessage


class RetainedTable:
    """The retained messages of all vhosts, and how many bytes those of each vhost have."""

    __slots__ = ("by_vhost", "bytes")

    def __init__(self) -> None:
        self.by_vhost: dict[str, dict[str, RetainedMessage]] = {}
        self.bytes: dict[str, int] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RetainedTable) and (self.by_vhost, self.bytes) == (other.by_vhost, other.bytes)

    __hash__ = None  # type: ignore[assignment]  # It changes.

    def __iter__(self) -> Iterator[tuple[str, RetainedMessage]]:
        for vhost, found in self.by_vhost.items():
            for message in found.values():
                yield vhost, message

    def copy(self) -> RetainedTable:
        """Return a copy that does not change with this one."""
        copy = RetainedTable()
        copy.by_vhost = {vhost: found.copy() for vhost, found in self.by_vhost.items()}
        copy.bytes = self.bytes.copy()
        return copy

    def get(self, vhost: str, topic: str) -> RetainedMessage | None:
        return self.by_vhost.get(vhost, {}).get(topic)

    def count(self, vhost: str) -> int:
        return len(self.by_vhost.get(vhost, ()))

    def put(self, vhost: str, message: RetainedMessage) -> None:
        old = self.get(vhost, message.topic)
        self.bytes[vhost] = self.bytes.get(vhost, 0) + message.size - (0 if old is None else old.size)
        self.by_vhost.setdefault(vhost, {})[message.topic] = message

    def remove(self, vhost: str, topic: str) -> None:
        found = self.by_vhost[vhost]
        self.bytes[vhost] -= found.pop(topic).size
        if not found:
            del self.by_vhost[vhost], self.bytes[vhost]


class SessionTable:
    """The sessions of all vhosts."""

    __slots__ = ("by_vhost",)

    def __init__(self) -> None:
        self.by_vhost: dict[str, dict[str, ClientSession]] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SessionTable) and self.by_vhost == other.by_vhost

    __hash__ = None  # type: ignore[assignment]  # It changes.

    def __iter__(self) -> Iterator[ClientSession]:
        for found in self.by_vhost.values():
            yield from found.values()

    def copy(self) -> SessionTable:
        """Return a copy that does not change with this one."""
        copy = SessionTable()
        copy.by_vhost = {vhost: found.copy() for vhost, found in self.by_vhost.items()}
        return copy

    def get(self, vhost: str, client_id: str) -> ClientSession | None:
        return self.by_vhost.get(vhost, {}).get(client_id)

    def count(self, vhost: str) -> int:
        return len(self.by_vhost.get(vhost, ()))

    def put(self, session: ClientSession) -> None:
        self.by_vhost.setdefault(session.vhost, {})[session.client_id] = session

    def remove(self, session: ClientSession) -> None:
        found = self.by_vhost[session.vhost]
        del found[session.client_id]
        if not found:
            del self.by_vhost[session.vhost]
