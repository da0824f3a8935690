"""The failure detector: turns events of links into alternating `Up` and `Down` events for each peer.

A pair of nodes has two links, one for each direction (see `link`). An open socket is not enough for its users: between
`Up` and `Down` every frame sent must arrive, in order, or `Down` comes; and a frame of an earlier session must never
arrive in a later one. So the two links form one *session*:

- When both links are open, a node *pairs* them: on its outgoing link it sends the id of the incoming one.
- A peer is up when the node has sent that and the peer has named the node's present outgoing link in return.
- When either link is lost after the pairing, both are closed, so that the other end sees the end of the session too.

It follows that no frame can arrive from a peer before it is up here. A peer sends frames only when this node is up
there, thus after it received our pairing, which named the very link on which the frames arrive. Its own pairing was
sent on that link before the frames, so it arrived first; and had we lost a link since, we would have closed this one.
Without the ids, a node that lost and redialed one link could take the pairing of the old one for the new, and consider
a peer up that does not consider it up.

A peer goes down in three ways:

- A link is closed: at once. The kernel of a node whose process died closes it within a millisecond.
- Silence, if the peer's machine or the network is down: after `silence_ms` (RabbitMQ's net_ticktime). Each link is
  judged by itself: a firewall can drop one of two connections.
- It is forgotten: no longer a member.

Silence of a part of that time makes a peer *doubtful*. A node that is in a minority without its doubtful peers gives
them up (`give_up`), and so has paused when the others take over what it was the master of. For that, the time must be
shorter than `silence_ms` by more than the longest time between two heartbeats: either end hears the other for the last
time up to so much earlier.

Silence is measured on a clock that advances by at most `step_ms_max` between two ticks. Otherwise a process that was
stopped for a while (by a debugger, a paused virtual machine, a long turn) would find every peer silent when it
continues, before it has read what they sent meanwhile.

Flapping: after a loss, the links must have been open for `stable_ms` before they are paired, twice as long after each
further loss, until a session has lasted `calm_ms`. Every `Down` causes elections and view changes; a bad cable must not
cause them ten times a second. The first session starts without delay. None is delayed for longer than half of
`silence_ms`: publishers wait for the session to send their publishes again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

OUT: Final = 0  # The link that this node dialed.
IN: Final = 1  # The link that the peer dialed.

DOUBLINGS_MAX: Final = 4


class DetectorOptions(NamedTuple):
    """Times of the failure detector."""

    silence_ms: int = 4_000
    doubt_ms: int = 2_500
    step_ms_max: int = 1_000
    stable_ms: int = 500
    calm_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class Up:
    """A session with the peer has started."""

    peer: str


@dataclass(frozen=True, slots=True)
class Down:
    """The session with the peer has ended."""

    peer: str
    reason: str


@dataclass(frozen=True, slots=True)
class Pair:
    """Asks the shell to send on the outgoing link that it and the link with the id `link` are one session."""

    peer: str
    link: bytes


@dataclass(frozen=True, slots=True)
class Cut:
    """Asks the shell to close the remaining links to the peer. They need not be reported as lost."""

    peer: str
    reason: str


Event = Up | Down | Pair | Cut


class _Peer:
    __slots__ = ("links", "heard_ms", "linked_ms", "paired", "named", "up_ms", "losses")

    def __init__(self) -> None:
        self.links: list[bytes | None] = [None, None]  # Ids, by side.
        self.heard_ms = [0, 0]  # By side, on the detector's clock.
        self.linked_ms = 0  # When the second of the two links was opened.
        self.paired = False  # This node has named the incoming link.
        self.named: bytes | None = None  # The link that the peer named on its present link to this node.
        self.up_ms: int | None = None
        self.losses = 0


class FailureDetector:
    """Watches the links to all peers of a node. `now_ms` never goes back."""

    def __init__(self, options: DetectorOptions = DetectorOptions()) -> None:  # noqa: B008 (immutable)
        self.options = options
        self._peers: dict[str, _Peer] = {}
        self._waking_ms = 0
        self._ticked_ms: int | None = None

    def is_up(self, peer: str) -> bool:
        state = self._peers.get(peer)
        return state is not None and state.up_ms is not None

    def doubtful(self) -> list[str]:
        """Return the peers that are up and have been silent for `doubt_ms`."""
        doubt_ms = self.options.doubt_ms
        return [peer for peer, one in self._peers.items() if one.up_ms is not None and self._silent_ms(one) >= doubt_ms]

    def up(self) -> list[str]:
        return [name for name, state in self._peers.items() if state.up_ms is not None]

    # -- Events of links -----------------------------------------------------------------------------------------

    def on_linked(self, peer: str, side: int, link: bytes, now_ms: int) -> list[Event]:
        """Note a new link. It replaces the one before, which must be broken if the peer opened another."""
        state = self._peers.setdefault(peer, _Peer())
        events = self.on_lost(peer, side, "the peer began anew", now_ms) if state.links[side] is not None else []
        state.links[side] = link
        state.heard_ms[side] = self._waking_ms
        if state.links[OUT] is not None and state.links[IN] is not None:
            state.linked_ms = now_ms
            events += self._settle(peer, state, now_ms)
        return events

    def on_paired(self, peer: str, link: bytes, now_ms: int) -> list[Event]:
        """Note that the peer named one of this node's links, on the link that it dialed."""
        state = self._peers.get(peer)
        if state is None or state.links[IN] is None:
            return []
        state.named = link
        return self._settle(peer, state, now_ms)

    def on_lost(self, peer: str, side: int, reason: str, now_ms: int) -> list[Event]:
        """Note that a link is closed."""
        state = self._peers.get(peer)
        if state is None or state.links[side] is None:
            return []
        if state.paired:
            return self._end(peer, state, reason, now_ms)
        state.links[side] = None
        if side == IN:
            state.named = None
        return []

    def heard(self, peer: str, side: int, at_ms: int) -> None:
        """Note when bytes last arrived on a link. If that was before the last tick, it is known already."""
        state = self._peers.get(peer)
        since_ms = 0 if self._ticked_ms is None else at_ms - self._ticked_ms
        if state is not None and since_ms >= 0:
            state.heard_ms[side] = self._waking_ms + min(since_ms, self.options.step_ms_max)

    def forget(self, peer: str, reason: str, now_ms: int) -> list[Event]:
        """Drop a peer that is no longer a member."""
        state = self._peers.get(peer)
        if state is None:
            return []
        events = self._end(peer, state, reason, now_ms)
        del self._peers[peer]
        return events

    # -- Time ----------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> list[Event]:
        """Advance the clock. Call `heard` for all input first, and this several times in each `silence_ms`."""
        if self._ticked_ms is not None:
            self._waking_ms += min(now_ms - self._ticked_ms, self.options.step_ms_max)
        self._ticked_ms = now_ms
        events: list[Event] = []
        for peer, state in self._peers.items():
            if self._silent_ms(state) >= self.options.silence_ms:
                events += self.give_up(peer, now_ms)
            else:
                events += self._settle(peer, state, now_ms)
        return events

    def give_up(self, peer: str, now_ms: int) -> list[Event]:
        """End the session with a peer that is silent. It may have been forgotten since it was found so."""
        state = self._peers.get(peer)
        if state is None:
            return []
        return self._end(peer, state, f"nothing was heard for {self._silent_ms(state)} ms", now_ms)

    def _silent_ms(self, state: _Peer) -> int:
        """Return for how long nothing was heard on one of the links."""
        out_ms, in_ms = state.heard_ms
        outgoing, incoming = state.links
        if outgoing is None:
            return 0 if incoming is None else self._waking_ms - in_ms
        return self._waking_ms - (out_ms if incoming is None else min(out_ms, in_ms))

    # -- Sessions ------------------------------------------------------------------------------------------------

    def _settle(self, peer: str, state: _Peer, now_ms: int) -> list[Event]:
        """Advance towards a session as far as the links and the time allow."""
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
