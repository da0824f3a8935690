"""One detector by hand, then two that talk over links that come and go, at random."""

from __future__ import annotations

from collections import deque
from random import Random

import pytest

from leveret.links.failure_detector import IN, OUT, Cut, DetectorOptions, Down, Event, FailureDetector, Pair, Up, _Peer

OPTIONS = DetectorOptions(silence_ms=4_000, doubt_ms=2_500, step_ms_max=500, stable_ms=500, calm_ms=30_000)


def up_with_b(now_ms: int = 0, detector: FailureDetector | None = None) -> FailureDetector:
    detector = detector or FailureDetector(OPTIONS)
    detector.on_linked("b", OUT, b"out", now_ms)
    detector.on_linked("b", IN, b"in", now_ms)
    detector.on_paired("b", b"out", now_ms)
    assert detector.is_up("b")
    return detector


def test_up_needs_both_links_and_the_peers_word() -> None:
    detector = FailureDetector(OPTIONS)
    assert detector.on_linked("b", OUT, b"out", 0) == []
    assert detector.on_linked("b", IN, b"in", 5) == [Pair("b", b"in")]
    assert not detector.is_up("b")
    assert detector.on_paired("b", b"another", 6) == []
    assert detector.on_paired("b", b"out", 7) == [Up("b")]
    assert detector.on_paired("b", b"out", 8) == [] and detector.tick(9) == []
    assert detector.is_up("b") and detector.up() == ["b"]


def test_a_peer_that_is_silent_for_a_while_is_doubtful_and_can_be_given_up() -> None:
    detector = up_with_b()
    for now_ms in range(0, 2_500, 250):
        assert detector.tick(now_ms) == [] and detector.doubtful() == []
    assert detector.tick(2_500) == [] and detector.doubtful() == ["b"]
    detector.heard("b", OUT, 2_500)
    assert detector.doubtful() == ["b"]  # The other link is silent still.
    detector.heard("b", IN, 2_500)
    assert detector.doubtful() == []
    for now_ms in range(2_750, 5_250, 250):
        detector.tick(now_ms)
    reason = "nothing was heard for 2500 ms"
    assert detector.give_up("b", 5_000) == [Cut("b", reason), Down("b", reason)]
    assert detector.doubtful() == [] and not detector.is_up("b")
    detector.forget("b", "no member any more", 5_000)
    assert detector.give_up("b", 5_000) == []


def test_the_peers_word_may_come_first() -> None:
    detector = FailureDetector(OPTIONS)
    detector.on_linked("b", IN, b"in", 0)
    assert detector.on_paired("b", b"out", 1) == []
    assert detector.on_linked("b", OUT, b"out", 2) == [Pair("b", b"in"), Up("b")]


@pytest.mark.parametrize("side", [OUT, IN])
def test_closed_link_counts_at_once_and_takes_the_other_with_it(side: int) -> None:
    detector = up_with_b()
    assert detector.on_lost("b", side, "closed", 100) == [Cut("b", "closed"), Down("b", "closed")]
    assert detector.on_lost("b", 1 - side, "closed", 101) == []
    assert not detector.is_up("b") and detector.up() == []


def test_link_lost_before_a_session_takes_nothing_with_it() -> None:
    detector = FailureDetector(OPTIONS)
    detector.on_linked("b", OUT, b"out", 0)
    assert detector.on_lost("b", OUT, "closed", 1) == []
    detector.on_linked("b", IN, b"in", 2)
    detector.on_paired("b", b"out 2", 3)
    assert detector.on_linked("b", OUT, b"out 2", 4) == [Pair("b", b"in"), Up("b")]


def test_the_peers_word_is_lost_with_the_link_it_came_on() -> None:
    detector = FailureDetector(OPTIONS)
    detector.on_linked("b", IN, b"in", 0)
    detector.on_paired("b", b"out", 0)
    detector.on_lost("b", IN, "closed", 1)
    detector.on_linked("b", IN, b"in 2", 2)
    assert detector.on_linked("b", OUT, b"out", 3) == [Pair("b", b"in 2")]


def test_new_link_in_place_of_the_old_ends_the_session() -> None:
    detector = up_with_b()
    reason = "the peer began anew"
    assert detector.on_linked("b", IN, b"in 2", 100) == [Cut("b", reason), Down("b", reason)]
    assert detector.on_linked("b", OUT, b"out 2", 200) == []  # Damped.
    assert detector.tick(700) == [Pair("b", b"in 2")]


@pytest.mark.parametrize("silent", [OUT, IN])
def test_silence_of_either_link(silent: int) -> None:
    detector = up_with_b()
    detector.tick(0)
    events: list[Event] = []
    for now_ms in range(250, 4_000, 250):
        detector.heard("b", 1 - silent, now_ms)
        assert detector.tick(now_ms) == []
    detector.heard("b", 1 - silent, 4_000)
    events = detector.tick(4_000)
    reason = "nothing was heard for 4000 ms"
    assert events == [Cut("b", reason), Down("b", reason)]


def test_who_is_heard_stays_up() -> None:
    detector = up_with_b()
    for now_ms in range(0, 60_000, 250):
        if now_ms % 3_000 == 0:
            detector.heard("b", OUT, now_ms)
            detector.heard("b", IN, now_ms)
        assert detector.tick(now_ms) == []
    detector.heard("unknown", OUT, 60_000)


def test_silence_begins_when_something_was_heard_and_not_at_a_tick() -> None:
    detector = up_with_b()
    detector.tick(1_000)
    for side in (OUT, IN):
        detector.heard("b", side, 1_400)
    detector.tick(1_500)
    for side in (OUT, IN):
        detector.heard("b", side, 1_400)  # It is told again, and is no news.
    for now_ms in range(2_000, 5_500, 500):
        assert detector.tick(now_ms) == []
    assert detector.tick(5_399) == []
    reason = "nothing was heard for 4000 ms"
    assert detector.tick(5_400) == [Cut("b", reason), Down("b", reason)]


def test_what_was_heard_after_a_sleep_is_no_older_than_the_waking() -> None:
    detector = up_with_b()
    detector.tick(0)
    for side in (OUT, IN):
        detector.heard("b", side, 60_000)
    detector.tick(60_000)
    events = [(now_ms, each) for now_ms in range(60_500, 65_000, 500) for each in detector.tick(now_ms)]
    assert {now_ms for now_ms, _ in events} == {64_000}


def test_silence_while_this_node_slept_does_not_count() -> None:
    detector = up_with_b()
    detector.tick(0)
    assert detector.tick(60_000) == []
    assert detector.tick(60_250) == []
    for now_ms in range(60_500, 63_500, 250):
        assert detector.tick(now_ms) == []
    assert any(isinstance(each, Down) for each in detector.tick(63_500))


def test_silent_link_without_a_session_is_cut() -> None:
    detector = FailureDetector(OPTIONS)
    detector.on_linked("b", IN, b"in", 0)
    events = [each for now_ms in range(0, 5_000, 250) for each in detector.tick(now_ms)]
    assert events == [Cut("b", "nothing was heard for 4000 ms")]


def relink(detector: FailureDetector, now_ms: int) -> list[Event]:
    """Lose the links and have them again at once."""
    detector.on_lost("b", OUT, "closed", now_ms)
    events = detector.on_linked("b", OUT, b"out", now_ms)
    events += detector.on_linked("b", IN, b"in", now_ms)
    return events + detector.on_paired("b", b"out", now_ms)


def test_flapping_is_damped_twice_as_long_each_time_and_forgiven() -> None:
    """But for no longer than half of the time for which a silent peer is waited for: publishers wait meanwhile."""
    detector = up_with_b()
    now_ms = 0
    for wait_ms in (500, 1_000, 2_000, 2_000, 2_000):
        assert relink(detector, now_ms) == []
        for _ in range(0, wait_ms - 250, 250):
            now_ms += 250
            detector.heard("b", OUT, now_ms)
            detector.heard("b", IN, now_ms)
            assert detector.tick(now_ms) == []
        now_ms += 250
        assert detector.tick(now_ms) == [Pair("b", b"in"), Up("b")]
    now_ms += 30_000
    assert relink(detector, now_ms) == []
    assert detector.tick(now_ms + 499) == []
    assert detector.tick(now_ms + 500) == [Pair("b", b"in"), Up("b")]


def test_damping_begins_anew_with_each_link() -> None:
    detector = up_with_b()
    relink(detector, 0)
    detector.on_lost("b", OUT, "closed", 400)
    detector.on_linked("b", OUT, b"out", 450)
    assert detector.tick(500) == []
    assert detector.tick(950) == [Pair("b", b"in"), Up("b")]


def test_forget() -> None:
    detector = up_with_b()
    assert detector.forget("b", "gone", 1) == [Cut("b", "gone"), Down("b", "gone")]
    assert detector.forget("b", "gone", 2) == [] and detector.tick(10_000) == []
    assert detector.on_paired("b", b"out", 3) == [] and detector.on_lost("b", OUT, "x", 3) == []
    up_with_b(now_ms=4, detector=detector)  # Nothing is held against one who comes back as a new member.


# -- Two nodes, at random --------------------------------------------------------------------------------------------


class Wire:
    """A connection: what each end has sent, and whether it still looks at it."""

    def __init__(self, name: bytes, dialer: int) -> None:
        self.name = name
        self.dialer = dialer
        self.open = [True, True]  # by node
        self.queue: tuple[deque[str | bytes], deque[str | bytes]] = (deque(["hello"]), deque())  # to acceptor, dialer


class World:
    """Two nodes whose links break at either end at any moment. Checks what a frame may find where it arrives."""

    def __init__(self, seed: int, kind: type[FailureDetector]) -> None:
        self.random = Random(seed)
        options = OPTIONS._replace(stable_ms=self.random.choice((0, 20)))
        self.detectors = [kind(options), kind(options)]
        self.links: list[list[Wire | None]] = [[None, None], [None, None]]  # by node, side
        self.wires: list[Wire] = []
        self.now_ms = 0
        self.ups = [0, 0]
        self.up = [False, False]
        self.got = [0, 0]

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.now_ms += self.random.choice((0, 0, 1, 5))
            node = self.random.randrange(2)
            what = self.random.random()
            if what < 0.70:
                self.deliver()
            elif what < 0.80:
                self.dial(node)
            elif what < 0.83:
                side = self.random.randrange(2)
                self.lose(node, side)
            elif what < 0.88:
                self.act(node, self.detectors[node].tick(self.now_ms))
            elif self.up[node]:
                wire = self.links[node][OUT]
                assert wire is not None
                wire.queue[0].append("frame")

    def settle(self) -> None:
        """Nothing breaks any more."""
        for _ in range(2_000):
            if self.up == [True, True] and not any(queue for wire in self.wires for queue in wire.queue):
                return
            self.now_ms += 5
            for node in (0, 1):
                self.dial(node)
                for side in (OUT, IN):
                    self.detectors[node].heard("peer", side, self.now_ms)
                self.act(node, self.detectors[node].tick(self.now_ms))
            self.deliver()

    def dial(self, node: int) -> None:
        busy = any(wire.dialer == node and wire.open[node] for wire in self.wires)
        if not busy:
            self.wires = [wire for wire in self.wires if any(wire.open) or any(wire.queue)]
            self.wires.append(Wire(b"%d" % self.random.getrandbits(64), node))

    def lose(self, node: int, side: int) -> None:
        wire = self.links[node][side]
        if wire is not None:
            self.close(node, wire)
            self.links[node][side] = None
            self.act(node, self.detectors[node].on_lost("peer", side, "lost", self.now_ms))

    def close(self, node: int, wire: Wire) -> None:
        wire.open[node] = False
        wire.queue[wire.dialer != node].append("end")

    def deliver(self) -> None:
        live = [(wire, way) for wire in self.wires for way in (0, 1) if wire.queue[way]]
        if not live:
            return
        wire, way = self.random.choice(live)
        node = wire.dialer if way else 1 - wire.dialer
        item = wire.queue[way].popleft()
        if not wire.open[node]:
            return
        side = OUT if way else IN
        if item == "hello":
            self.attach(node, side, wire)
            if side == IN:
                wire.queue[1].append("hello")
        elif item == "end":
            wire.open[node] = False
            if self.links[node][side] is wire:
                self.lose(node, side)
        elif item == "frame":
            assert self.up[node], "a frame from a peer that is not up"
            assert self.links[node][IN] is wire, "a frame of another session"
            self.got[node] += 1
        elif isinstance(item, bytes):
            self.act(node, self.detectors[node].on_paired("peer", item, self.now_ms))

    def attach(self, node: int, side: int, wire: Wire) -> None:
        self.lose(node, side)
        self.links[node][side] = wire
        self.act(node, self.detectors[node].on_linked("peer", side, wire.name, self.now_ms))

    def act(self, node: int, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Pair):
                wire = self.links[node][OUT]
                assert wire is not None
                wire.queue[0].append(event.link)
            elif isinstance(event, Cut):
                for side in (OUT, IN):
                    cut = self.links[node][side]
                    if cut is not None:
                        self.close(node, cut)
                        self.links[node][side] = None
            elif isinstance(event, Up):
                assert not self.up[node]
                self.up[node] = True
                self.ups[node] += 1
            else:
                assert self.up[node]
                self.up[node] = False


def test_frames_only_within_a_session() -> None:
    got = ups = 0
    for seed in range(300):
        world = World(seed, FailureDetector)
        world.run(400)
        world.settle()
        assert world.up == [True, True], f"seed {seed}: not up again after all faults ended"
        got += sum(world.got)
        ups += sum(world.ups)
    assert got > 1_000 and ups > 1_000  # Else nothing was tried.


class Careless(FailureDetector):
    """Takes the peer's word for whichever link there is."""

    def _settle(self, peer: str, state: _Peer, now_ms: int) -> list[Event]:
        if state.named is not None:
            state.named = state.links[OUT]
        return super()._settle(peer, state, now_ms)


def test_the_check_notices_a_detector_that_ignores_ids() -> None:
    with pytest.raises(AssertionError, match="not up"):
        for seed in range(300):
            World(seed, Careless).run(400)
