"""Two ends joined by bytes, and what somebody in between, or without the cookie, could do."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.links import link
from leveret.links.link import (
    ACCEPTOR,
    CALL,
    DIALER,
    FIRST_KIND,
    GREETING_BYTES_MAX,
    LARGE_BYTES,
    Event,
    Failed,
    Frames,
    Identity,
    Link,
    LinkOptions,
    Paired,
    Ready,
)

COOKIE = b"a cookie that nobody guesses"
ALICE = Identity("alice@host", b"A" * 16)
BOB = Identity("bob@host", b"B" * 16)
KIND = FIRST_KIND + 4


def dialer(me: Identity = ALICE, cookie: bytes = COOKIE, nonce: bytes = b"1" * 32, **more: object) -> Link:
    return Link(DIALER, me, cookie, nonce, 0, **more)  # type: ignore[arg-type]


def acceptor(me: Identity = BOB, cookie: bytes = COOKIE, nonce: bytes = b"2" * 32, **more: object) -> Link:
    return Link(ACCEPTOR, me, cookie, nonce, 0, **more)  # type: ignore[arg-type]


def taken(end: Link) -> bytes:
    return b"".join(end.take())


class Wiretap:
    """Two ends, and all that went between them."""

    def __init__(self, left: Link, right: Link, step: int = 0) -> None:
        self.ends = (left, right)
        self.events: tuple[list[Event], list[Event]] = ([], [])
        self.said = (bytearray(), bytearray())
        self.step = step  # bytes at a time; 0: all there are

    def run(self) -> Wiretap:
        while any(end.out for end in self.ends):
            for index, end in enumerate(self.ends):
                data = taken(end)
                self.said[index].extend(data)
                step = self.step or len(data) or 1
                for at in range(0, len(data), step):
                    self.events[1 - index].extend(self.ends[1 - index].receive(data[at : at + step]))
        return self

    def failures(self) -> list[str | None]:
        """By end: why it failed."""
        return [next((each.reason for each in events if isinstance(each, Failed)), None) for events in self.events]


def ready_pair() -> tuple[Link, Link]:
    left, right = dialer(), acceptor()
    Wiretap(left, right).run()
    assert left.is_ready and right.is_ready
    return left, right


def frames_of(events: Iterable[Event]) -> list[tuple[int, bytes]]:
    return [frame for event in events if isinstance(event, Frames) for frame in event.frames]


def frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">IB", len(payload), kind) + payload


# -- The greeting ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0, 1, 7])
def test_greeting_and_frames_both_ways(step: int) -> None:
    left, right = dialer(), acceptor()
    tap = Wiretap(left, right, step).run()
    assert tap.events == ([Ready(BOB, link.TRAFFIC, link.VERSION_MAX)], [Ready(ALICE, link.TRAFFIC, link.VERSION_MAX)])
    assert left.id == right.id and len(left.id) == 16
    left.send(KIND, b"there")
    left.send(KIND + 1, [b"in", bytearray(b" "), memoryview(b"parts")])
    right.send(KIND, b"")
    tap.run()
    assert frames_of(tap.events[1]) == [(KIND, b"there"), (KIND + 1, b"in parts")]
    assert frames_of(tap.events[0]) == [(KIND, b"")]


def test_the_cookie_never_travels() -> None:
    tap = Wiretap(dialer(), acceptor()).run()
    for said in tap.said:
        assert said and COOKIE not in said


def test_ids_differ_with_the_nonces() -> None:
    ids = set()
    for nonce in (b"1" * 32, b"3" * 32):
        left, right = dialer(nonce=nonce), acceptor()
        Wiretap(left, right).run()
        ids.add(left.id)
    assert len(ids) == 2


def test_wrong_cookie_ends_at_the_acceptor_which_proves_nothing() -> None:
    left, right = dialer(cookie=b"wrong"), acceptor()
    tap = Wiretap(left, right).run()
    assert tap.failures() == [link.REFUSED, link.COOKIE]
    assert not any(isinstance(each, Ready) for events in tap.events for each in events)
    assert kinds(bytes(tap.said[1])) == [link.HELLO, link.REFUSAL]
    assert left.is_closed and right.is_closed


def kinds(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        size, kind = struct.unpack_from(">IB", data, at)
        found.append(kind)
        at += 5 + size
    return found


def test_acceptor_with_another_cookie_is_noticed_by_the_dialer() -> None:
    """An impostor that lets every dialer in, proving with what it has."""
    left, right = dialer(), acceptor(cookie=b"wrong")
    right.receive(taken(left))
    left.receive(taken(right))
    forged = frame(link.PROOF, right._proof(ACCEPTOR))
    assert [type(each) for each in left.receive(forged)] == [Failed]
    assert left.is_closed


def test_echo_of_all_that_was_sent_does_not_authenticate() -> None:
    left = dialer()
    events = left.receive(taken(left))
    assert [each.reason for each in events if isinstance(each, Failed)] == [link.GARBAGE]


def test_reflected_proof_does_not_authenticate() -> None:
    """Somebody without the cookie greets with a name and nonce of its own, and sends the proof back to its maker."""
    left = dialer()
    impostor = acceptor(cookie=b"wrong")
    impostor.receive(taken(left))
    left.receive(taken(impostor))
    proof = taken(left)
    assert kinds(proof) == [link.PROOF]
    events = left.receive(proof)
    assert [each.reason for each in events if isinstance(each, Failed)] == [link.COOKIE]


def test_proof_got_from_a_dialer_does_not_open_another_node() -> None:
    """Mallory is dialed by Alice, and uses Alice's proof to knock at Bob's."""
    alice, bob = dialer(), acceptor()
    mallory = acceptor(me=Identity("mallory", b"M" * 16), cookie=b"none")
    hello = taken(alice)
    mallory.receive(hello)
    bob.receive(hello)
    alice.receive(taken(mallory))
    taken(bob)
    events = bob.receive(taken(alice))
    assert [each.reason for each in events if isinstance(each, Failed)] == [link.COOKIE]


def test_recorded_greeting_cannot_be_replayed() -> None:
    tap = Wiretap(dialer(), acceptor()).run()
    again = acceptor(nonce=b"9" * 32)
    events = again.receive(bytes(tap.said[0]))
    assert [each.reason for each in events if isinstance(each, Failed)] == [link.COOKIE]
    left = dialer(nonce=b"8" * 32)
    events = left.receive(bytes(tap.said[1]))
    assert [each.reason for each in events if isinstance(each, Failed)] == [link.COOKIE]


def test_no_byte_of_a_hello_can_be_changed_on_the_way() -> None:
    size = len(taken(dialer()))
    for at in range(5, size):
        left, right = dialer(), acceptor()
        data = bytearray(taken(left))
        data[at] ^= 1
        events = right.receive(bytes(data))
        left.receive(taken(right))
        events += right.receive(taken(left))
        assert not any(isinstance(each, Ready) for each in events), at


@pytest.mark.parametrize(
    ("mine", "theirs", "chosen"), [((1, 1), (1, 3), 1), ((1, 4), (2, 3), 3), ((2, 5), (5, 9), 5), ((3, 3), (3, 3), 3)]
)
def test_highest_common_version(mine: tuple[int, int], theirs: tuple[int, int], chosen: int) -> None:
    left, right = dialer(options=LinkOptions(versions=mine)), acceptor(options=LinkOptions(versions=theirs))
    Wiretap(left, right).run()
    assert left.is_ready and right.is_ready
    assert left.version == right.version == chosen


@pytest.mark.parametrize(("mine", "theirs"), [((1, 1), (2, 3)), ((4, 5), (1, 3))])
def test_no_common_version_is_said_clearly_at_both_ends(mine: tuple[int, int], theirs: tuple[int, int]) -> None:
    tap = Wiretap(dialer(options=LinkOptions(versions=mine)), acceptor(options=LinkOptions(versions=theirs))).run()
    assert tap.failures() == [link.REFUSED, link.VERSION]
    failed = tap.events[0][0]
    assert isinstance(failed, Failed)
    text = f"no version of the protocol in common: {mine[0]} to {mine[1]} there, {theirs[0]} to {theirs[1]} here"
    assert failed.text == text


@pytest.mark.parametrize(
    ("left", "right", "reason"),
    [
        (ALICE, ALICE, link.SELF),
        (ALICE, Identity(ALICE.name, BOB.uuid), link.NAME),
        (ALICE, Identity(BOB.name, ALICE.uuid), link.NAME),
        (ALICE._replace(cluster=b"x" * 16), BOB._replace(cluster=b"y" * 16), link.CLUSTER),
    ],
)
def test_misfits(left: Identity, right: Identity, reason: str) -> None:
    # Who dials itself must know, since it may have been given a list of addresses with its own among them.
    told = link.SELF if reason == link.SELF else link.REFUSED
    assert Wiretap(dialer(me=left), acceptor(me=right)).run().failures() == [told, reason]
    # Strangers are not told any of it.
    assert Wiretap(dialer(me=left, cookie=b"wrong"), acceptor(me=right)).run().failures()[1] == link.COOKIE


def test_who_has_no_cluster_yet_fits_any() -> None:
    left, right = dialer(), acceptor(me=BOB._replace(cluster=b"y" * 16))
    tap = Wiretap(left, right).run()
    assert tap.events[0] == [Ready(BOB._replace(cluster=b"y" * 16), link.TRAFFIC, link.VERSION_MAX)]


def test_call_is_told_apart_and_may_come_from_anywhere() -> None:
    left = dialer(me=Identity("leveretctl", b"L" * 16, b"x" * 16), purpose=CALL)
    right = acceptor(me=BOB._replace(cluster=b"y" * 16))
    tap = Wiretap(left, right).run()
    assert right.purpose == CALL
    assert isinstance(tap.events[1][0], Ready) and tap.events[1][0].purpose == CALL


def test_longer_hello_of_a_later_version_is_understood() -> None:
    left, right = dialer(), acceptor()
    left._hello += b"what nobody knows yet"
    taken(left)
    left._control(link.HELLO, left._hello)
    Wiretap(left, right).run()
    assert left.is_ready and right.is_ready


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"AMQP\x00\x00\x09\x01",
        frame(KIND, b"too early"),
        frame(link.HEARTBEAT, b""),
        frame(link.PAIR, bytes(16)),
        frame(link.PROOF, bytes(32)),
        frame(link.HELLO, b""),
        frame(link.HELLO, b"LVRT" + bytes(100)),
        frame(link.HELLO, bytes(GREETING_BYTES_MAX)),
        struct.pack(">IB", GREETING_BYTES_MAX + 1, link.HELLO),
        frame(0, b""),
    ],
)
@pytest.mark.parametrize("role", [DIALER, ACCEPTOR])
@pytest.mark.parametrize("step", [1, 1000])
def test_garbage_in_the_greeting(data: bytes, role: int, step: int) -> None:
    end = dialer() if role == DIALER else acceptor()
    taken(end)
    events = [each for at in range(0, len(data), step) for each in end.receive(data[at : at + step])]
    assert [each.reason for each in events if isinstance(each, Failed)] == [link.GARBAGE]
    assert len(events) == 1 and end.is_closed
    assert kinds(taken(end)) == [link.REFUSAL]
    assert end.receive(b"more") == [] and end.tick(10**9) == []


@pytest.mark.parametrize("name", [b"", b"with\nbreak", b"\xff\xfe", b"\x1b[31m"])
def test_names_that_cannot_be_shown_are_refused(name: bytes) -> None:
    hello = dialer()._hello
    head = hello[: len(hello) - len(ALICE.name) - 1]
    right = acceptor()
    events = right.receive(frame(link.HELLO, head + bytes((len(name),)) + name))
    assert [each.reason for each in events if isinstance(each, Failed)] == [link.GARBAGE]


def test_second_hello_is_refused() -> None:
    left, right = dialer(), acceptor()
    hello = taken(left)
    assert right.receive(hello) == []
    assert isinstance(right.receive(hello)[0], Failed)


def test_frame_after_the_proof_in_the_same_bytes() -> None:
    """The acceptor's proof, and at once the first frames."""
    left, right = dialer(), acceptor()
    right.receive(taken(left))
    left.receive(taken(right))
    right.receive(taken(left))
    right.send(KIND, bytes(5000))
    events = left.receive(taken(right))
    assert [type(each) for each in events] == [Ready, Frames]
    assert frames_of(events) == [(KIND, bytes(5000))]


def test_deadline_of_the_greeting() -> None:
    left, right = dialer(), acceptor()
    right.receive(taken(left))
    assert right.tick(4_999) == []
    failed = right.tick(5_000)
    assert [each.reason for each in failed if isinstance(each, Failed)] == [link.TIMEOUT]
    assert right.tick(5_001) == [] and right.receive(b"x") == []
    left, right = ready_pair()
    assert left.tick(6_000) == right.tick(6_000) == []


@pytest.mark.parametrize(("cookie", "nonce"), [(b"", bytes(32)), (b"c", bytes(31))])
def test_bad_arguments(cookie: bytes, nonce: bytes) -> None:
    with pytest.raises(ValueError):
        Link(DIALER, ALICE, cookie, nonce, 0)


def test_who_cannot_introduce_itself() -> None:
    for me in (Identity("", b"A" * 16), Identity("x" * 256, b"A" * 16), Identity("a", b"A"), Identity("a", b"A", b"c")):
        with pytest.raises(ValueError):
            dialer(me=me)


def test_refusal_is_fit_for_a_log() -> None:
    left, right = ready_pair()
    right.refuse("go away\n\x1b[31mred" + "x" * 2000)
    events = left.receive(taken(right))
    assert len(events) == 1 and isinstance(events[0], Failed)
    assert events[0].reason == link.REFUSED
    assert events[0].text.startswith("go away??[31mredxxx") and len(events[0].text) == link.REFUSAL_BYTES_MAX
    assert left.out == []  # A refusal is not answered.


# -- Frames ----------------------------------------------------------------------------------------------------------


@given(
    frames=st.lists(st.tuples(st.integers(FIRST_KIND, 255), st.binary(max_size=300)), max_size=12),
    cuts=st.lists(st.integers(0, 4000), max_size=20),
)
def test_frames_arrive_however_the_bytes_are_cut(frames: list[tuple[int, bytes]], cuts: list[int]) -> None:
    left, right = ready_pair()
    for kind, payload in frames:
        left.send(kind, payload)
    data = taken(left)
    edges = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    events: list[Event] = []
    for at, end in pairwise(edges):
        events += right.receive(data[at:end])
    assert frames_of(events) == frames


def test_all_frames_of_one_read_are_one_event() -> None:
    left, right = ready_pair()
    for number in range(100):
        left.send(KIND, b"%d" % number)
    assert right.receive(taken(left)) == [Frames([(KIND, b"%d" % number) for number in range(100)])]


def test_frame_in_very_many_pieces() -> None:
    left, right = ready_pair()
    payload = bytes(range(256)) * (link.PIECES_MAX * 3 // 256)
    left.send(KIND, payload)
    data = taken(left)
    events: list[Event] = []
    for at in range(len(data)):
        events += right.receive(data[at : at + 1])
        assert len(right._pieces) <= link.PIECES_MAX
    assert frames_of(events) == [(KIND, payload)]


def test_oversize_frame() -> None:
    left, right = dialer(), acceptor(options=LinkOptions(frame_bytes_max=2000))
    Wiretap(left, right).run()
    left.send(KIND, bytes(2000))
    with pytest.raises(ValueError, match="a frame of 2001 bytes; the other end takes at most 2000"):
        left.send(KIND, [bytes(2000), b"x"])
    assert frames_of(right.receive(taken(left))) == [(KIND, bytes(2000))]
    events = right.receive(frame(KIND, b"good") + struct.pack(">IB", 2001, KIND))
    assert [type(each) for each in events] == [Frames, Failed]
    assert isinstance(events[1], Failed) and events[1].reason == link.OVERSIZE
    assert isinstance(left.receive(taken(right))[0], Failed)


@pytest.mark.parametrize("purpose", [link.TRAFFIC, CALL])
def test_an_end_that_takes_nothing_is_turned_away(purpose: int) -> None:
    """Whatever were sent to it would be too large."""
    for limit in (0, link.GREETING_BYTES_MAX - 1):
        left, right = dialer(purpose=purpose, options=LinkOptions(frame_bytes_max=limit)), acceptor()
        assert Wiretap(left, right).run().failures()[1] == link.GARBAGE


@pytest.mark.parametrize(
    "data",
    [
        frame(0, b""),
        frame(link.HELLO, b"again"),
        frame(link.PROOF, bytes(32)),
        frame(link.PAIR, bytes(15)),
        frame(link.HEARTBEAT, b"payload"),
        frame(FIRST_KIND - 1, b""),
    ],
)
def test_garbage_after_the_greeting(data: bytes) -> None:
    _, right = ready_pair()
    events = right.receive(frame(KIND, b"good") + data + frame(KIND, b"never seen"))
    assert [type(each) for each in events] == [Frames, Failed]
    assert frames_of(events) == [(KIND, b"good")]
    assert right.is_closed and right.receive(frame(KIND, b"")) == []


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.sampled_from(["dialer", "acceptor", "ready"]))
@settings(max_examples=300)
def test_anything_at_all_raises_nothing_and_fails_once(pieces: list[bytes], which: str) -> None:
    end = {"dialer": dialer, "acceptor": acceptor, "ready": lambda: ready_pair()[1]}[which]()
    events = [each for piece in pieces for each in end.receive(piece)]
    failures = [each for each in events if isinstance(each, Failed)]
    assert len(failures) == end.is_closed
    assert not failures or events[-1] is failures[0]


def test_send_faults_of_the_caller() -> None:
    left = dialer()
    with pytest.raises(ValueError, match="not ready"):
        left.send(KIND, b"")
    left, _ = ready_pair()
    for kind in (link.HEARTBEAT, FIRST_KIND - 1, 256, -1):
        with pytest.raises(ValueError, match="not a kind"):
            left.send(kind, b"")


def test_closed_link_drops_what_is_sent() -> None:
    """Whoever sends when told `Ready` cannot know yet that the same bytes ended with a refusal."""
    left, right = dialer(), acceptor()
    right.receive(taken(left))
    left.receive(taken(right))
    right.receive(taken(left))
    right.refuse("no room")
    events = left.receive(taken(right))
    assert [type(each) for each in events] == [Ready, Failed]
    left.send(KIND, b"x")
    left.pair(bytes(16))
    assert left.out == [] and left.out_bytes == 0


def test_pair() -> None:
    left, right = ready_pair()
    left.send(KIND, b"before")
    left.pair(b"i" * 16)
    left.send(KIND, b"after")
    assert right.receive(taken(left)) == [Frames([(KIND, b"before")]), Paired(b"i" * 16), Frames([(KIND, b"after")])]


# -- Batching and time -----------------------------------------------------------------------------------------------


def test_small_parts_are_joined_and_large_ones_are_not_copied() -> None:
    left, right = ready_pair()
    large, also_large = bytes(LARGE_BYTES), memoryview(bytearray(LARGE_BYTES))
    left.send(KIND, b"a")
    left.send(KIND, [b"b", large, b"c"])
    left.send(KIND, b"d")
    left.send(KIND, [also_large])
    assert left.out_bytes == sum(len(part) for part in left.out)
    buffers = left.take()
    assert len(buffers) == 4
    assert buffers[1] is large and buffers[3] is also_large
    assert left.out_bytes == 0 and left.take() == []
    assert [len(payload) for _, payload in frames_of(right.receive(b"".join(buffers)))] == [
        1,
        LARGE_BYTES + 2,
        1,
        LARGE_BYTES,
    ]
    for _ in range(1000):
        left.send(KIND, b"small")
    assert len(left.take()) == 1


def test_part_of_wide_items_is_counted_in_bytes() -> None:
    left, right = ready_pair()
    left.send(KIND, [memoryview(bytearray(80)).cast("Q")])
    assert frames_of(right.receive(taken(left))) == [(KIND, bytes(80))]


def test_heartbeats_only_when_idle() -> None:
    left, right = ready_pair()
    left.tick(0)
    assert left.tick(999) == [] and left.out == []
    left.tick(1_000)
    assert kinds(taken(left)) == [link.HEARTBEAT]
    left.tick(1_500)
    left.send(KIND, b"x")
    data = b"".join(left.take(1_600))
    left.tick(2_000)
    left.tick(2_599)
    assert left.out == []
    left.tick(2_600)
    data += taken(left)
    assert kinds(data) == [KIND, link.HEARTBEAT]
    assert frames_of(right.receive(data)) == [(KIND, b"x")]


def test_a_quiet_end_beats_when_it_receives_something() -> None:
    left, right = ready_pair()
    left.tick(1_000)
    right.tick(900)
    right.receive(taken(left), 1_001)
    answer = b"".join(right.take(1_001))
    assert kinds(answer) == [link.HEARTBEAT]
    left.receive(answer, 1_002)
    assert left.out == [], "it has just beaten itself"
    left.send(KIND, b"x")
    assert frames_of(right.receive(b"".join(left.take(1_600)), 1_601)) == [(KIND, b"x")]
    assert right.out == [], "it has beaten a short time ago"
    right.tick(1_900)
    assert right.out == [], "none is due before a second has passed"
    left.send(KIND, b"y")
    right.receive(taken(left), 1_950)
    right.send(KIND, b"z")
    assert kinds(b"".join(right.take(1_950))) == [link.HEARTBEAT, KIND]


def test_no_heartbeat_along_with_others() -> None:
    left, right = ready_pair()
    right.send(KIND, b"x")
    right.beat_along(900)
    assert kinds(taken(right)) == [KIND], "something is sent anyway"
    right.beat_along(600)
    assert right.out == []
    right.beat_along(700)
    assert kinds(b"".join(right.take(700))) == [link.HEARTBEAT]
    right.close()
    right.beat_along(5_000)
    assert right.out == []
    left.close()
    left.tick(9_000)
    assert left.out == []


def test_silence() -> None:
    left, right = ready_pair()
    right.tick(600)
    assert right.heard_ms == 0 and right.silent_ms(700) == 700
    left.send(KIND, b"x")
    right.receive(taken(left), 750)
    assert right.heard_ms == 750 and right.silent_ms(800) == 50
