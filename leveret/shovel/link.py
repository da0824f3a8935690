"""One link: what is delivered is published, and what is confirmed is acknowledged.

**Numbers.** Both sides count from 1: the source its deliveries, the destination the publishes that it confirms. A link
begins with two new channels and publishes every delivery, in order, so that a message has the same number at both: the
confirm of 17 is the acknowledgement of 17, and a confirm of all up to 40 is one frame in and one frame out. If either
side is lost, both are given up, and the next link begins at 1 again.

**Ack modes.** `on-confirm`: as above. `on-publish`: a message is acknowledged when it was written to the destination's
socket. `no-ack`: the source expects no acknowledgements.

**The end.** A link may have a number of messages to move (`quota`). It publishes no more than that, and is done when
all of them are confirmed. What was delivered beyond it is not acknowledged, so that the source has it again. Since that
would lose messages without acknowledgements, a link with a quota asks for them also in the mode `no-ack`.

**Refused messages.** A destination that is full nacks. The message goes back to the source, and the link rests for a
moment (`is_resting`), because it would get the same message again at once. A link with a quota fails instead: its
count would be wrong.

**Bundles.** Between two Leverets messages come many in a frame, and go on so (`leveret.protocol.bundles`): a link that
changes nothing of messages has nothing to do for each of them.

**Marks.** What the source delivers again may have been brought before, to a master that is lost, and a consumer may
have seen it there. If the destination knows marks (`leveret.protocol.origins`), it is told that in the origin of the
message, and marks it as redelivered, unless its queues have it.

A broker that breaks these rules (a tag out of order, a confirm of something that was never published) makes the link
fail with `LinkFault`. It never guesses.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.client.machine import publish_prefix
from leveret.protocol import bundles
from leveret.protocol.frames import BadContent, reframe
from leveret.protocol.origins import marked

if TYPE_CHECKING:
    from leveret.client.machine import BundleDelivery, Delivery
    from leveret.metadata.shovel.parameters import AckMode

PREFIXES_MAX: Final = 10_000  # Routes whose method frames are remembered.
CHANNEL: Final = 1
_ROUTE: Final = attrgetter("route")
_CONTENT: Final = attrgetter("content")
_REDELIVERED: Final = attrgetter("redelivered")

Rewrite = Callable[[bytes], bytes]


class LinkFault(Exception):
    """The link cannot go on. The text is for people."""


class Settlement(NamedTuple):
    """What to tell the source: these messages are done with, or are to be delivered again."""

    tag: int
    multiple: bool
    requeue: bool


class Target(NamedTuple):
    """Where messages go. None: to the exchange, or with the routing key, that they had."""

    exchange: str | None
    routing_key: str | None
    mandatory: bool = False  # A message that reaches no queue is returned, and the link fails.

    def route(self, route: bytes) -> bytes:
        """Return exchange and routing key for a message that had these, as two short strings."""
        middle = 1 + route[0]
        exchange = route[:middle] if self.exchange is None else _short(self.exchange)
        key = route[middle:] if self.routing_key is None else _short(self.routing_key)
        return exchange + key


class Link:
    """The messages under way from a source to a destination."""

    def __init__(
        self,
        mode: AckMode,
        target: Target,
        rewrite: Rewrite | None = None,
        quota: int | None = None,
        frame_max: int = 0,
        marks: bool = False,
    ) -> None:
        self.mode = mode
        self.target = target
        self.rewrite = rewrite
        self.quota = quota
        self.frame_max = frame_max  # Of the destination, if it is smaller than the source's; 0: it is not.
        self.marks = marks  # The destination knows marks of origins.
        self.delivered = 0  # The last tag of the source.
        self.published = 0
        self.bytes = 0
        self.confirmed_through = 0  # All up to this number,
        self.confirmed_ahead: set[int] = set()  # and these.
        self.refused = 0
        self.is_resting = False
        self.prefixes: dict[bytes, bytes] = {}  # The method frames of publishes, by the routes of deliveries.
        self.settlements: list[Settlement] = []

    # -- Figures -------------------------------------------------------------------------------------------------

    @property
    def acknowledges(self) -> bool:
        """Whether the source is to wait for acknowledgements."""
        return self.mode != "no-ack" or self.quota is not None

    @property
    def forwarded(self) -> int:
        """How many messages have arrived, as far as the mode can tell."""
        if self.mode != "on-confirm":
            return self.published
        return self.confirmed_through + len(self.confirmed_ahead) - self.refused

    @property
    def pending(self) -> int:
        """How many are published and not confirmed."""
        return self.published - self.confirmed_through - len(self.confirmed_ahead) if self.mode == "on-confirm" else 0

    @property
    def remaining(self) -> int | None:
        """How many are to be moved until the end; None: there is no end."""
        return None if self.quota is None else max(self.quota - self.forwarded, 0)

    @property
    def is_done(self) -> bool:
        return self.remaining == 0

    # -- Deliveries ----------------------------------------------------------------------------------------------

    def on_deliveries(self, deliveries: list[Delivery]) -> list[bytes]:
        """Return the bytes that publish these messages. Raises LinkFault."""
        if deliveries[0].tag != self.delivered + 1 or deliveries[-1].tag != self.delivered + len(deliveries):
            raise LinkFault("the source's delivery tags are out of order")
        self.delivered += len(deliveries)
        if self.quota is not None:
            deliveries = deliveries[: self._left_to_publish()]
        contents = list(map(_CONTENT, deliveries))
        if self.marks and any(map(_REDELIVERED, deliveries)):
            contents = [self._marked(one.content) if one.redelivered else one.content for one in deliveries]
        if self.rewrite is not None or self.frame_max:
            contents = list(map(self._made_fit, contents))
        routes = list(map(_ROUTE, deliveries))
        pieces: list[bytes] = [b""] * (2 * len(contents))
        pieces[0::2] = map(self._prefixes(set(routes)).__getitem__, routes)
        pieces[1::2] = contents
        self.published += len(deliveries)
        self.bytes += sum(map(len, pieces))
        if self.mode != "on-confirm" and deliveries and self.acknowledges:
            self.settlements.append(Settlement(self.published, True, False))
        return pieces

    @property
    def takes_bundles(self) -> bool:
        """Tell whether messages may come in bundles: none of them is looked at."""
        return self.mode == "on-confirm" and self.rewrite is None and not self.frame_max

    def on_bundle(self, delivery: BundleDelivery) -> list[bytes]:
        """Return the bytes that publish these messages. Raises LinkFault."""
        first_tag, count, redelivered, route, bundle = delivery
        if first_tag != self.delivered + 1:
            raise LinkFault("the source's delivery tags are out of order")
        self.delivered += count
        if self.quota is not None and count > self._left_to_publish():
            count = self._left_to_publish()
            if not count:
                return []
            bundle = _changed(bundle, lambda one: bundles.cut(one, count))
        if redelivered and self.marks:
            bundle = _changed(bundle, bundles.marked)
        arguments = self.target.route(route) + bytes((self.target.mandatory,))
        pieces = bundles.publish_frame(CHANNEL, arguments, bundle)
        self.published += count
        self.bytes += len(bundle)
        return pieces

    def _left_to_publish(self) -> int:
        assert self.quota is not None
        return max(self.quota - self.published, 0)

    def _marked(self, content: bytes) -> bytes:
        try:
            return marked(content)
        except ValueError as error:
            raise LinkFault(f"the source has sent a message that cannot be read: {error}") from None

    def _made_fit(self, content: bytes) -> bytes:
        try:
            if self.rewrite is not None:
                content = self.rewrite(content)
            return reframe(content, CHANNEL, self.frame_max)
        except (BadContent, ValueError) as error:
            raise LinkFault(f"the source has sent a message that cannot be read: {error}") from None

    def _prefixes(self, routes: set[bytes]) -> dict[bytes, bytes]:
        """Return the method frames of publishes, of these routes among others."""
        prefixes, target = self.prefixes, self.target
        if len(prefixes) > PREFIXES_MAX:
            prefixes.clear()
        for route in routes.difference(prefixes):
            prefixes[route] = publish_prefix(target.route(route), target.mandatory)
        return prefixes

    # -- Confirms ------------------------------------------------------------------------------------------------

    def on_confirm(self, number: int, multiple: bool, refused: bool) -> None:
        """The destination has a message, or all up to that number, or refuses them. Raises LinkFault."""
        if self.mode != "on-confirm":
            return
        is_known = number > self.confirmed_through and number not in self.confirmed_ahead
        if number > self.published or not (is_known or multiple):
            raise LinkFault("the destination has confirmed a message that it was not sent")
        before = self.pending
        if multiple:
            self.confirmed_through = max(self.confirmed_through, number)
            self.confirmed_ahead = {one for one in self.confirmed_ahead if one > number}
        else:
            self.confirmed_ahead.add(number)
        while self.confirmed_through + 1 in self.confirmed_ahead:
            self.confirmed_through += 1
            self.confirmed_ahead.remove(self.confirmed_through)
        if refused:
            if self.quota is not None:
                raise LinkFault("the destination refuses messages: is its queue full?")
            self.refused += before - self.pending
            self.is_resting = True
        self.settlements.append(Settlement(number, multiple, refused))

    def on_rested(self) -> None:
        """The link goes on after a refusal."""
        self.is_resting = False

    def take_settlements(self) -> list[Settlement]:
        """Return what the source is to be told, once."""
        settlements, self.settlements = self.settlements, []
        return settlements


def _changed(bundle: bytes, change: Callable[[bytes], bytes]) -> bytes:
    try:
        return change(bundle)
    except bundles.BadBundle as error:
        raise LinkFault(f"the source has sent a bundle that cannot be read: {error}") from None


def _short(text: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    return bytes((len(data),)) + data
