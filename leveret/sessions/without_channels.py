"""What connections of protocols without channels share: MQTT and STOMP have one session each.

How such a connection is held and goes on is told in its own module. What lists show of channels is the same for all:
there is one, of number 1, in lists of consumers, and none in lists of channels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue, Broker
    from leveret.broker.remote.direct_reply_to import BusyLink
    from leveret.broker.session.session import Session
    from leveret.broker.vhost import Vhost
    from leveret.sessions.output import Output
    from leveret.sessions.peer import Peer

NO_CHANNELS: Final[dict[int, Any]] = {}


class LoginPart(Protocol):
    """The way of a connection to its session."""

    @property
    def mechanism(self) -> str: ...


class ConnectionWithoutChannels(ABC):
    """The part of a connection that does not depend on its protocol."""

    __slots__ = (
        "blocked", "broker", "busy", "close_reason", "closed", "connected_ms", "crowded_queue", "has_published", "held",
        "login_part", "number", "on_entered", "on_released", "output", "peer", "received_bytes", "received_count",
        "received_ms", "received_since_tick", "session", "spreads", "ticked_ms", "user", "vhost", "waits",
    )  # fmt: skip

    output: Output  # Each protocol makes its own, and the next one.
    login_part: LoginPart

    def __init__(self, broker: Broker, peer: Peer) -> None:
        self.broker = broker
        self.number = broker.number_connection()
        self.peer = peer
        self.closed = False  # Whether `life` is CLOSED: asked for each packet or frame.
        self.close_reason = ""
        self.user = ""
        self.vhost: Vhost | None = None
        self.session: Session | None = None
        self.held = False
        self.waits = 0  # Held because so many answers have not come.
        self.blocked = False  # Held because it has published during an alarm.
        self.spreads = False  # Held because the turn's budget for publishes to many queues is used up.
        self.crowded_queue: AnyQueue | BusyLink | None = None
        self.has_published = False
        self.busy = False  # Packets or frames are being processed.
        self.on_released: Callable[[], None] | None = None
        self.on_entered: Callable[[], None] | None = None
        self.connected_ms = broker.wall_ms
        self.received_bytes = self.received_count = 0
        self.received_ms = self.ticked_ms = broker.now_ms
        self.received_since_tick = True

    @abstractmethod
    def _go_on(self) -> None:
        """Process what came meanwhile, if nothing holds the connection any longer."""

    def attend(self, on_released: Callable[[], None], on_entered: Callable[[], None]) -> None:
        """The shell is to be told when it may read on, and when the client has logged in."""
        self.on_released, self.on_entered = on_released, on_entered

    def leave_alone(self) -> None:
        """The shell has lost its socket, and is told nothing more: if the two knew each other for good, both would stay
        in memory until the garbage collector finds them."""
        self.on_released = self.on_entered = None

    @property
    def mechanism(self) -> str:
        return self.login_part.mechanism

    @property
    def channels(self) -> Mapping[int, Any]:
        return NO_CHANNELS

    def sessions(self) -> list[tuple[int, Session]]:
        return [] if self.session is None else [(1, self.session)]

    @property
    def channel_max(self) -> int:
        return 0

    @property
    def frame_max(self) -> int:
        return 0

    @property
    def closing(self) -> bool:
        return self.closed

    def hold(self) -> None:
        """Nothing further is processed before `release`, since it may depend on what is under way."""
        self.waits += 1
        self.held = True

    def release(self) -> None:
        self.waits -= 1
        if not self.busy:
            self._go_on()

    def unblock(self) -> None:
        if self.blocked and not self.closed:
            self.blocked = False
            if not self.busy:
                self._go_on()

    def rest_from_spreading(self) -> None:
        """Publishes to many queues wait for another turn, with all that the client sent behind them."""
        self.spreads = self.held = True
        self.broker.fanout.waiting[self] = None

    def on_portion(self) -> None:
        self.spreads = False
        if not self.busy:
            self._go_on()

    def on_publish(self) -> None:
        self.has_published = True

    def on_crowded(self, queue: AnyQueue | BusyLink) -> None:
        self.crowded_queue = queue

    def take_crowded_queue(self) -> AnyQueue | BusyLink | None:
        crowded_queue, self.crowded_queue = self.crowded_queue, None
        return crowded_queue

    def on_room(self) -> bool:
        """All that was made is written and the socket takes more. True: there is more to do, have another turn."""
        stalled = self.output.stalled
        if not stalled:
            return False
        self.broker.touch_stalled(stalled)
        return True

    def blame(self, reason: str) -> None:
        """The shell is about to end the socket, for a reason that the log is to tell."""
        self.close_reason = reason
