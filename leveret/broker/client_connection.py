"""A client's connection of any protocol, as the node sees it: its socket drives it, and lists show it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue, Broker
    from leveret.broker.remote.direct_reply_to import BusyLink
    from leveret.broker.session.session import Session
    from leveret.broker.vhost import Vhost


class Address(Protocol):
    """The two ends of a client's socket."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def local_host(self) -> str: ...
    @property
    def local_port(self) -> int: ...
    @property
    def tls(self) -> bool: ...


class Sent(Protocol):
    """The output of a connection: pieces that the shell writes at the end of a turn."""

    pieces: list[bytes]
    size: int
    sent_bytes: int
    sent_count: int

    @property
    def is_writable(self) -> bool: ...
    def take(self) -> list[bytes]: ...
    def on_written(self, count: int) -> None: ...
    def set_writable(self, is_writable: bool) -> None: ...


class ClientConnection(Protocol):
    """The machine of one client, as `leveret.sessions.amqp.connection`; MQTT and STOMP have one each."""

    broker: Broker
    number: int
    user: str
    vhost: Vhost | None
    held: bool  # Nothing is to be read.
    blocked: bool  # By an alarm.
    has_published: bool
    close_reason: str
    connected_ms: int
    received_bytes: int
    received_count: int

    @property
    def rest(self) -> bytes:
        """Input that waits."""

    @property
    def peer(self) -> Address: ...
    @property
    def output(self) -> Sent: ...
    @property
    def protocol(self) -> str: ...
    @property
    def variables(self) -> Mapping[str, str]:
        """What patterns of topic permissions can name: MQTT's client id."""

    @property
    def mechanism(self) -> str: ...
    @property
    def channels(self) -> Mapping[int, Any]: ...
    def sessions(self) -> Sequence[tuple[int, Session]]:
        """Return its sessions, each with the number of its channel. Without channels there is one, of number 1."""

    @property
    def channel_max(self) -> int: ...
    @property
    def frame_max(self) -> int: ...
    @property
    def heartbeat_s(self) -> int: ...
    @property
    def client_properties(self) -> Mapping[str, object]: ...
    @property
    def closing(self) -> bool: ...
    @property
    def closed(self) -> bool: ...
    @property
    def was_asked_to_close(self) -> bool: ...
    @property
    def crowded_queue(self) -> AnyQueue | BusyLink | None: ...

    def attend(self, on_released: Callable[[], None], on_entered: Callable[[], None]) -> None: ...
    def receive(self, data: bytes) -> None: ...
    def close(self, code: int, text: str) -> None: ...
    def blame(self, reason: str) -> None: ...
    def describe(self) -> str: ...
    def take_crowded_queue(self) -> AnyQueue | BusyLink | None: ...
    def unblock(self) -> None: ...
    def on_room(self) -> bool: ...
    def on_socket_lost(self) -> None: ...
    def on_tick(self, now_ms: int, listening: bool = True) -> bool: ...
