"""Links between nodes: strangers' bytes in the greeting, and a member's after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from leveret.links import link
from leveret.links.link import ACCEPTOR, DIALER, FIRST_KIND, Event, Failed, Frames, Identity, Link, Ready
from tests.system.fuzz.fuzzer import Target

COOKIE: Final = b"cookie"
CUTS: Final = (1, 3, 5, 64)


class LinkFailed(Exception):
    """The machine refused the bytes, as it should."""


def dialer(purpose: int = link.TRAFFIC) -> Link:
    return Link(DIALER, Identity("alice", b"a" * 16), COOKIE, b"1" * 32, 0, purpose=purpose)


def acceptor() -> Link:
    return Link(ACCEPTOR, Identity("bob", b"b" * 16), COOKIE, b"2" * 32, 0)


def recorded(purpose: int = link.TRAFFIC) -> tuple[bytes, bytes]:
    """What each end says in a greeting that succeeds."""
    left, right = dialer(purpose), acceptor()
    ours = theirs = b""
    while left.out or right.out:
        said = b"".join(left.take())
        right.receive(said)
        ours += said
        said = b"".join(right.take())
        left.receive(said)
        theirs += said
    assert left.is_ready and right.is_ready
    return ours, theirs


FROM_DIALER, FROM_ACCEPTOR = recorded()


def ready() -> Link:
    end = acceptor()
    end.receive(FROM_DIALER)
    end.take()
    return end


def frames() -> list[bytes]:
    """Runs of frames."""
    left = dialer()
    left.receive(FROM_ACCEPTOR)
    left.take()
    runs = []
    for sizes in ((0,), (1, 2, 3), (200, 0, 0, 7), (1000,), (3000,)):
        for number, size in enumerate(sizes):
            left.send(FIRST_KIND + number, bytes([number]) * size)
        runs.append(b"".join(left.take()))
    left.pair(b"p" * 16)
    left.send(255, b"last")
    left.tick(0)
    left.take()
    left.tick(10_000)
    runs.append(b"".join(left.take()))
    return runs


def feed(end: Link, data: bytes, step: int) -> list[Event]:
    events = [each for at in range(0, len(data), step) for each in end.receive(data[at : at + step])]
    failures = [each for each in events if isinstance(each, Failed)]
    assert len(failures) == end.is_closed
    assert not failures or events[-1] is failures[0]
    assert end.receive(b"") == []
    return events


def flat(events: list[Event]) -> list[object]:
    """Events without the way frames were bundled."""
    flattened: list[object] = []
    for event in events:
        flattened += event.frames if isinstance(event, Frames) else [event]
    return flattened


def compare(make: Callable[[], Link], data: bytes) -> list[Event]:
    """However the bytes are cut, they mean the same."""
    whole = feed(make(), data, max(len(data), 1))
    step = CUTS[len(data) % len(CUTS)]
    assert flat(feed(make(), data, step)) == flat(whole)
    if whole and isinstance(whole[-1], Failed):
        raise LinkFailed(whole[-1].text)
    return whole


def run_greeting(data: bytes) -> None:
    """Only who knows the cookie is let in: bytes that authenticate are those of the dialer."""
    for event in compare(acceptor, data):
        if isinstance(event, Ready):
            assert data.startswith((FROM_DIALER, _CALL[0]))


def run_answer(data: bytes) -> None:
    for event in compare(dialer, data):
        if isinstance(event, Ready):
            assert data.startswith(FROM_ACCEPTOR)


def run_frames(data: bytes) -> None:
    for event in compare(ready, data):
        assert not isinstance(event, Ready)
        if isinstance(event, Frames):
            assert all(kind >= FIRST_KIND for kind, _ in event.frames)


_CALL: Final = recorded(link.CALL)
_FRAMES: Final = frames()

LINK_TARGETS: Final = [
    Target(
        "link-greeting",
        run_greeting,
        [FROM_DIALER, _CALL[0], *(FROM_DIALER + run for run in _FRAMES)],
        (LinkFailed,),
    ),
    Target("link-answer", run_answer, [FROM_ACCEPTOR, FROM_ACCEPTOR + _FRAMES[0]], (LinkFailed,)),
    Target("link-frames", run_frames, _FRAMES, (LinkFailed,)),
]
