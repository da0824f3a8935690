"""Who is there: turns what happens to links into `Up` and `Down`, one after the other, for each peer.

A pair of nodes has two links, one for each direction (see `link`). Users of a peer need more than a socket that
happens to be open: between `Up` and `Down` every frame sent arrives, in order, or `Down` comes; and a frame of an
earlier session never arrives in a later one. So the two links are taken as one *session*:

- When both links are there, a node *pairs* them: it tells the peer, on its own outgoing link, the id of the incoming.
- A peer is up when the node has said so and the peer has named the node's present outgoing link in return.
- When either link is lost after that was said, both are cut, so that the other end sees the end of the session too.

From this it follows that no frame can come from a peer before it is up here. It sends frames only when it is up with
us, thus after it heard our pairing, which named the very link the frames come on; its own pairing was sent before the
frames on that link, so it was heard first; and had we lost a link since, we had cut the other, which the frames come
on. Without the ids, a node that had lost and redialed one link would take the pairing of the old one for its own, and
be up with a peer that is not up with it.

Three ways to go down:

- A link is closed: at once. The kernel of a node whose process died says so within the same millisecond.
- Silence, for a peer whose machine or network is gone, which says nothing: after `silence_ms` (RabbitMQ's
  net_ticktime). Each link is judged by itself: a firewall can forget one of two connections.
- It is forgotten: no longer a member.

Silence is measured on a clock of the node's own waking time, which goes on by at most `step_ms_max` between two
ticks. A process that was stopped for a while (a debugger, a paused virtual machine, a long turn) would else find every
peer silent when it goes on, before it has read what they sent meanwhile.

Flapping: after a loss, the links must have been there for `stable_ms` before they are paired, twice as long after each
further loss, until a session has lasted `calm_ms`. Every `Down` costs elections and view changes elsewhere; a bad cable
must not cause them ten times a second. The first session begins without delay. None is held back for longer than half
of `silence_ms`: publishers wait for it whose publishes were lost with the one before, and not for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

OUT: Final = 0  # the link that this node dialed
IN: Final = 1  # the link that the peer dialed

DOUBLINGS_MAX: Final = 4


class DetectorOptions(NamedTuple):
    silence_ms: int = 4_000
    step_ms_max: int = 1_000
    stable_ms: int = 500
    calm_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class Up:
    peer: str


@dataclass(frozen=True, slots=True)
class Down:
    peer: str
    reason: str


@dataclass(frozen=True, slots=True)
class Pair:
    """Send on the outgoing link: this and the link with the id `link` are one session."""

    peer: str
    link: bytes


@dataclass(frozen=True, slots=True)
class Cut:
    """Close the links to the peer that are still there. They need not be reported as lost."""

    peer: str
    reason: str


Event = Up | Down | Pair | Cut


class _Peer:
    __slots__ = ("links", "heard_ms", "linked_ms", "paired", "named", "up_ms", "losses")

    def __init__(self) -> None:
        self.links: list[bytes | None] = [None, None]  # ids, by side
        self.heard_ms = [0, 0]  # by side, on the waking clock
        self.linked_ms = 0  # when the second of the two links came
        self.paired = False  # we named the incoming link
        self.named: bytes | None = None  # the link that the peer named, on its present link to us
        self.up_ms: int | None = None
        self.losses = 0


class Detector:
    """All peers of one node. `now_ms` never goes back."""

    def __init__(self, options: DetectorOptions = DetectorOptions()) -> None:  # noqa: B008 (immutable)
        self.options = options
        self._peers: dict[str, _Peer] = {}
        self._waking_ms = 0
        self._ticked_ms: int | None = None

    def is_up(self, peer: str) -> bool:
        state = self._peers.get(peer)
        return state is not None and state.up_ms is not None

    def up(self) -> list[str]:
        return [name for name, state in self._peers.items() if state.up_ms is not None]

    # -- What happens to links -----------------------------------------------------------------------------------

    def on_linked(self, peer: str, side: int, link: bytes, now_ms: int) -> list[Event]:
        """A link is ready. It takes the place of the one before, which the peer would not have given up if it lived."""
        state = self._peers.setdefault(peer, _Peer())
        events = self.on_lost(peer, side, "the peer began anew", now_ms) if state.links[side] is not None else []
        state.links[side] = link
        state.heard_ms[side] = self._waking_ms
        if state.links[OUT] is not None and state.links[IN] is not None:
            state.linked_ms = now_ms
            events += self._settle(peer, state, now_ms)
        return events

    def on_paired(self, peer: str, link: bytes, now_ms: int) -> list[Event]:
        """The peer named a link of ours, on the link that it dialed."""
        state = self._peers.get(peer)
        if state is None or state.links[IN] is None:
            return []
        state.named = link
        return self._settle(peer, state, now_ms)

    def on_lost(self, peer: str, side: int, reason: str, now_ms: int) -> list[Event]:
        """A link is closed."""
        state = self._peers.get(peer)
        if state is None or state.links[side] is None:
            return []
        if state.paired:
            return self._end(peer, state, reason, now_ms)
        state.links[side] = None
        if side == IN:
            state.named = None
        return []

    def heard(self, peer: str, side: int) -> None:
        """Something came on that link."""
        state = self._peers.get(peer)
        if state is not None:
            state.heard_ms[side] = self._waking_ms

    def forget(self, peer: str, reason: str, now_ms: int) -> list[Event]:
        """The peer is no member any more."""
        state = self._peers.get(peer)
        if state is None:
            return []
        events = self._end(peer, state, reason, now_ms)
        del self._peers[peer]
        return events

    # -- Time ----------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> list[Event]:
        """Report what was heard first. Several ticks must fit into `silence_ms`."""
        if self._ticked_ms is not None:
            self._waking_ms += min(now_ms - self._ticked_ms, self.options.step_ms_max)
        self._ticked_ms = now_ms
        events: list[Event] = []
        for peer, state in self._peers.items():
            silent_ms = max(
                (self._waking_ms - state.heard_ms[side] for side in (OUT, IN) if state.links[side] is not None),
                default=0,
            )
            if silent_ms >= self.options.silence_ms:
                events += self._end(peer, state, f"nothing was heard for {silent_ms} ms", now_ms)
            else:
                events += self._settle(peer, state, now_ms)
        return events

    # -- Sessions ------------------------------------------------------------------------------------------------

    def _settle(self, peer: str, state: _Peer, now_ms: int) -> list[Event]:
        """Go as far towards a session as the links and the time allow."""
        outgoing, incoming = state.links
        if outgoing is None or incoming is None:
            return []
        events: list[Event] = []
        if not state.paired and now_ms - state.linked_ms >= self._damping_ms(state):
            state.paired = True
            events.append(Pair(peer, incoming))
        if state.paired and state.up_ms is None and state.named == outgoing:
            state.up_ms = now_ms
            events.append(Up(peer))
        return events

    def _damping_ms(self, state: _Peer) -> int:
        if not state.losses:
            return 0
        stable_ms, silence_ms = self.options.stable_ms, self.options.silence_ms
        return min(stable_ms << min(state.losses - 1, DOUBLINGS_MAX), max(stable_ms, silence_ms // 2))

    def _end(self, peer: str, state: _Peer, reason: str, now_ms: int) -> list[Event]:
        events: list[Event] = []
        if any(link is not None for link in state.links):
            events.append(Cut(peer, reason))
        if state.up_ms is not None:
            events.append(Down(peer, reason))
            state.losses = 1 if now_ms - state.up_ms >= self.options.calm_ms else state.losses + 1
        state.links = [None, None]
        state.paired = False
        state.named = None
        state.up_ms = None
        return events
