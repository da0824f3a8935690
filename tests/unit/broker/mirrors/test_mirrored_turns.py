"""One event that concerns very many copies: a turn does so much of it, and nothing is forgotten between turns."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.mirrors import broadcast, manager
from leveret.broker.mirrors.manager import EARLY_TICKS, Mirror, MirrorManager
from leveret.metadata.model import commands as c
from leveret.metadata.model.view import View
from leveret.replication import ring_frames as f
from leveret.replication.frame_codec import Unpacker
from leveret.replication.member import Member
from tests.support.control_world import cluster
from tests.support.machines import publish
from tests.support.mirrored_brokers import NAMES as RING
from tests.support.mirrored_brokers import Rings as CreatedRings
from tests.support.ring_world import Rings

NAMES = ("a", "b", "c")
QUEUES = 40
EFFECTS = 12
TOLD = 5
TICKED = 6


@pytest.fixture
def rings(monkeypatch: pytest.MonkeyPatch) -> Rings:
    rings = Rings(cluster(*NAMES))
    for number in range(QUEUES):
        rings.declare(f"q{number}", *NAMES)
    monkeypatch.setattr(manager, "EFFECTS_AT_ONCE", EFFECTS)
    monkeypatch.setattr(manager, "TICKED_AT_ONCE", TICKED)
    monkeypatch.setattr(broadcast, "TOLD_AT_ONCE", TOLD)
    return rings


class Work:
    """What a node's copies have done since it was last asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, mirrors: MirrorManager) -> None:
        self.effects: list[int] = []
        perform = MirrorManager._perform

        def counted(of: MirrorManager, mirror: Mirror) -> int:
            done = perform(of, mirror)
            if of is mirrors:
                self.effects.append(done)
            return done

        monkeypatch.setattr(MirrorManager, "_perform", counted)

    def take(self) -> list[int]:
        effects, self.effects = self.effects, []
        return effects


def mirrors_of(rings: Rings, name: str) -> MirrorManager:
    return rings.servers[name].world.broker.mirrors


def leads(rings: Rings, name: str) -> int:
    return sum(mirror.member.master is not None for mirror in mirrors_of(rings, name))


def test_a_loss_is_dealt_with_in_turns(rings: Rings, monkeypatch: pytest.MonkeyPatch) -> None:
    mirrors, work = mirrors_of(rings, "b"), Work(monkeypatch, mirrors_of(rings, "b"))
    told: list[int] = []
    monkeypatch.setattr(mirrors.journal, "on_peer_down", lambda mirror, peer: told.append(mirror.spec.id))
    mirrors.on_peer_down("a")
    assert not told
    turns = 0
    while mirrors.has_work:
        before = len(told)
        mirrors.flush()
        turns += 1
        assert len(told) - before <= TOLD + EFFECTS, "those of the round, and those that are used"
        effects = work.take()
        assert sum(effects[:-1]) < EFFECTS, "the last may be more than there was room for"
    assert sorted(told) == sorted(mirrors.mirrors) and turns >= QUEUES // TOLD


def test_all_are_led_by_somebody_in_the_end(rings: Rings) -> None:
    rings.kill("a")
    rings.tick(60)
    assert leads(rings, "b") + leads(rings, "c") == QUEUES


def test_ticks_too(rings: Rings, monkeypatch: pytest.MonkeyPatch) -> None:
    mirrors = mirrors_of(rings, "b")
    ticks: list[int] = []
    monkeypatch.setattr(Member, "on_tick", lambda member: ticks.append(member.group))
    for mirror in mirrors:
        mirrors.ticking[mirror] = None
        mirror.member.proposal_age = 0  # For all of them time matters.
    mirrors.tick()
    assert len(ticks) == TICKED
    mirrors.tick()  # The round goes on in turns, and another one has to wait.
    while mirrors.due:
        before = len(ticks)
        mirrors.flush()
        assert len(ticks) - before <= TICKED
    assert sorted(ticks) == sorted(mirrors.mirrors)


def test_time_does_not_stand_still_for_ever(rings: Rings) -> None:
    mirrors = mirrors_of(rings, "b")
    mirror = next(iter(mirrors))
    mirrors.performing = [mirror]  # As if there were always something left.
    mirror.member.proposal_age = 0
    mirrors.ticking[mirror] = None
    for _ in range(manager.TICKS_SKIPPED_MAX):
        mirrors.tick()
    assert mirror.member.ticks == 0
    mirrors.tick()
    assert mirror.member.ticks == 1


def test_a_frame_finds_a_copy_that_has_heard_of_the_loss(rings: Rings) -> None:
    mirrors = mirrors_of(rings, "b")
    mirrors.on_peer_down("a")
    last = list(mirrors)[-1]
    assert "a" in last.member.links
    packer = mirrors_of(rings, "c").packers["b"]
    packer.add(last.spec.id, f.Newer(1))
    for payload in packer.take():
        mirrors.on_frame("c", b"".join(payload))
    assert "a" not in last.member.links


def test_nothing_of_the_old_session_is_said_in_the_new_one(rings: Rings, monkeypatch: pytest.MonkeyPatch) -> None:
    mirrors = mirrors_of(rings, "b")
    mirror = list(mirrors)[-1]
    mirror.member.send("a", f.Leave(1))
    mirrors.touched[mirror] = None
    mirrors.on_peer_down("a")
    mirrors.on_peer_up("a")
    sent: list[tuple[str, Any]] = []
    monkeypatch.setitem(manager._EFFECTS, f.Send, lambda of, mirror, effect: sent.append((effect.to, effect.frame)))
    mirrors.finish()
    assert sent and not any(isinstance(frame, f.Leave) for _, frame in sent)


def test_a_peer_gets_what_its_version_knows(rings: Rings) -> None:
    """Also after a pause, which ends without a new link."""
    mirrors = mirrors_of(rings, "b")
    piece = f.Piece(1, 1, 0, ((1, 1),), 1, ((1, 1),), (), 1, requeued=((1, 1),))
    for knows, expected in ((False, ()), (True, ((1, 1),))):
        mirrors.on_linked("a", knows)
        for _ in range(2):
            mirrors.on_peer_down("a")
            mirrors.on_peer_up("a")
            mirrors.packers["a"].add(1, piece)
            (payload,) = mirrors.packers["a"].take()
            assert Unpacker().feed(b"".join(payload)) == [(1, piece._replace(requeued=expected))]


def test_without_the_majority_nothing_is_handed_out_from_now_on(rings: Rings) -> None:
    mirrors = mirrors_of(rings, "a")
    mirrors.on_majority(False)
    assert all(mirror.queue is not None and mirror.queue.frozen for mirror in mirrors)
    mirrors.on_majority(True)
    assert any(mirror.queue is not None and mirror.queue.frozen for mirror in mirrors), "none before its turn"
    mirrors.finish()
    assert not any(mirror.queue is not None and mirror.queue.frozen for mirror in mirrors)


def test_the_majority_is_lost_before_the_master_is(rings: Rings) -> None:
    """Who has no say must not try to lead, however late it hears of either."""
    mirrors = mirrors_of(rings, "b")
    proposed: list[c.Command] = []
    rings.servers["b"].world.propose = lambda command, then, patient=False: proposed.append(command)  # type: ignore[method-assign]
    mirrors.on_majority(False)
    mirrors.on_peer_down("a")
    mirrors.on_peer_down("c")
    mirrors.finish()
    assert proposed == []


def test_one_that_stops_tells_those_that_have_something_to_do(rings: Rings) -> None:
    """Its links end for all copies, and nothing comes of that for those at rest."""
    mirrors = mirrors_of(rings, "b")
    busy, *others = mirrors
    mirrors.leave()
    mirrors.on_peer_down("a")
    mirrors.touch(busy)
    mirrors.finish()
    assert "a" not in busy.member.links and all("a" in mirror.member.links for mirror in others)
    assert not mirrors.has_work


def test_a_view_comes_to_one_that_has_heard_everything(rings: Rings) -> None:
    mirrors = mirrors_of(rings, "b")
    mirrors.on_peer_down("a")
    mirror = list(mirrors)[-1]
    old = mirror.member.view
    assert old is not None
    view = View(old.version + 1, old.epoch + 1, "b", old.ring, tuple(one for one in old.in_sync if one[0] != "a"))
    spec = mirror.spec
    rings._propose(c.ChangeView(spec.vhost, spec.name, spec.id, view))
    assert mirror.member.master is not None and "a" not in mirror.member.links


def test_a_queue_that_is_deleted_meanwhile_is_passed_over(rings: Rings) -> None:
    mirrors = mirrors_of(rings, "b")
    mirrors.on_peer_down("a")
    mirrors.flush()
    for number in range(QUEUES):
        rings._propose(c.DeleteQueue("/", f"q{number}"))
    mirrors.finish()
    assert not mirrors.mirrors and not mirrors.performing and not mirrors.broadcast


# -- Copies that the nodes of a ring create one after the other ----------------------------------------------------


def declare_late(rings: CreatedRings, *late: str) -> None:
    """Declares another queue, which these nodes do not hear of yet."""
    rings.behind = set(late)
    view = View(1, 1, "a", RING, tuple((name, f"{name}.0") for name in RING))
    rings.apply(c.DeclareQueue("/", "late", durable=True, node="a", view=view))


def copies(rings: CreatedRings) -> list[Mirror]:
    number = rings["a"].metadata.queues["/", "late"].id
    return [rings[name].broker.mirrors.mirrors[number] for name in RING]


@pytest.mark.parametrize("late", ["a", "b", "c"])
def test_a_mirror_that_asks_before_its_feeder_knows_the_queue_is_fed_without_asking_again(late: str) -> None:
    rings = CreatedRings()
    declare_late(rings, late)
    rings.behind.clear()
    rings.run()
    assert not any(rings[name].broker.mirrors.early for name in RING)
    rings["a"].client().feed(publish(1, "", "late", b"x", delivery_mode=2))
    rings.run()
    ends = [one.member.tail.end for one in copies(rings)]
    assert ends[0] > 0 and ends == [copies(rings)[0].member.confirmed] * len(RING)


def test_what_asked_too_early_is_forgotten_with_its_link() -> None:
    rings = CreatedRings()
    declare_late(rings, "a")
    assert [peer for _, peer in rings["a"].broker.mirrors.early] == ["b"]
    rings.close("a", "b")
    assert not rings["a"].broker.mirrors.early


def test_what_asks_for_a_queue_that_never_comes_is_forgotten() -> None:
    rings = CreatedRings()
    declare_late(rings, "a")
    for _ in range(EARLY_TICKS + 1):
        rings["a"].broker.mirrors.tick()
    assert not rings["a"].broker.mirrors.early
