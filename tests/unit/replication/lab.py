"""Members by hand: what they are told, what they say."""

from __future__ import annotations

from typing import Any, TypeVar

from leveret.metadata.model.view import View
from leveret.replication.member import Member
from leveret.replication.ring_frames import (
    Apply,
    Blocks,
    Confirmed,
    Effect,
    Entry,
    Frame,
    Numbers,
    Options,
    ProposeView,
    Recovered,
    Send,
)
from leveret.storage.format.queue_block import PERSISTENT, Block, Run

GROUP = 7
F = TypeVar("F")


def block(
    epoch: int,
    number: int,
    first: int = 0,
    contents: tuple[bytes, ...] = (),
    settled: tuple[tuple[int, int], ...] = (),
    kind: int = PERSISTENT,
) -> Block:
    run = Run(first, list(contents), [b"k"] * len(contents), bytearray([kind]) * len(contents)) if contents else None
    return Block(GROUP, epoch, number, 0, run, list(settled), [], 0)


def blocks(epoch: int, low: int, high: int) -> tuple[Block, ...]:
    return tuple(block(epoch, number) for number in range(low, high + 1))


def found(*epochs: int, base: int = 0, complete: bool = True, **more: Any) -> Recovered:
    """A log with one block of each epoch given, of which the first `base` are applied."""
    history: list[tuple[int, int]] = []
    log = []
    for number, epoch in enumerate(epochs, 1):
        if not history or history[-1][0] != epoch:
            history.append((epoch, number))
        if number > base:
            log.append(block(epoch, number))
    return Recovered(base, tuple(history), blocks=tuple(log), complete=complete, **more)


def view(
    version: int, epoch: int, master: str = "a", in_sync: str = "ab", ring: str = "abc", lossy: int = 0, void: int = 0
) -> View:
    return View(version, epoch, master, tuple(ring), tuple((name, f"{name}.0") for name in in_sync), lossy, void)


def member(
    me: str,
    recovered: Recovered | None = None,
    options: Options | None = None,
    links: str = "abcde",
    disk: str = "",
    life: int = 1,
    born: bool = False,
    lost: tuple[tuple[int, int], ...] = (),
) -> Member:
    made = Member(GROUP, me, disk or f"{me}.0", life, lambda group: list(lost), options, recovered, born)
    for peer in links:
        if peer != me:
            made.on_peer_up(peer)
    return made


def drain(of: Member, sync: bool = True) -> list[Effect]:
    """All effects, with all writes synced, unless not."""
    effects: list[Effect] = []
    while now := of.take():
        effects += now
        if sync:
            of.on_synced(of.written)
    return effects


def sent(effects: list[Effect], kind: type[F], to: str | None = None) -> list[F]:
    sends = [effect for effect in effects if isinstance(effect, Send) and (to is None or effect.to == to)]
    return [send.frame for send in sends if isinstance(send.frame, kind)]


def proposed(effects: list[Effect]) -> list[View]:
    return [effect.view for effect in effects if isinstance(effect, ProposeView)]


def confirmed(effects: list[Effect]) -> int:
    """The highest number that persistent messages are confirmed up to."""
    return max((effect.durable for effect in effects if isinstance(effect, Confirmed)), default=0)


def applied(effects: list[Effect]) -> list[int]:
    return [one.number for effect in effects if isinstance(effect, Apply) for one in effect.blocks]


def numbers(effects: list[Effect], name: str) -> list[Entry]:
    return [dict(frame.entries)[name] for frame in sent(effects, Numbers) if name in dict(frame.entries)]


def lead(
    in_sync: str = "ab", recovered: Recovered | None = None, options: Options | None = None, epoch: int = 2
) -> Member:
    """A master: a, of a, b and c."""
    made = member("a", recovered, options)
    made.on_view(view(1, epoch - 1, "b", "ab"))
    drain(made)
    made.on_view(view(2, epoch, "a", in_sync))
    drain(made)
    return made


def follow(
    recovered: Recovered | None = None, in_sync: str = "ab", epoch: int = 2, options: Options | None = None
) -> Member:
    """A mirror: b, of the ring a, b, c, and a leads."""
    made = member("b", recovered, options)
    made.on_view(view(2, epoch, "a", in_sync))
    drain(made)
    return made


_stamps = iter(range(1, 1 << 40))


def say(
    to: Member, who: str, received: int, durable: int, complete: bool = True, disk: str = "", sync: bool = True
) -> list[Effect]:
    """`who` tells the master its numbers."""
    assert to.view is not None
    entry = Entry(disk or f"{who}.0", next(_stamps), received, durable, complete)
    to.on_frame(who, Numbers(to.view.epoch, ((who, entry),)))
    return drain(to, sync)


def feed(
    to: Member, confirmed_to: int, previous: tuple[int, int], *what: Block, src: str = "a", version: int = 2
) -> None:
    assert to.view is not None
    to.on_frame(src, Blocks(to.view.epoch, version, confirmed_to, *previous, tuple(what)))


def give(to: Member, src: str, frame: Frame, sync: bool = True) -> list[Effect]:
    to.on_frame(src, frame)
    return drain(to, sync)


def publish(to: Member, count: int = 1, size: int = 1, kind: int = PERSISTENT) -> None:
    """Blocks of one message each."""
    for _ in range(count):
        assert to.view is not None and to.master is not None
        end = max(to.tail.end, to.master.start_number)  # The start block of a new group comes with the first of these.
        assert to.submit(block(to.view.epoch, end + 1, end * 10, (b"x" * size,), kind=kind))


def tick(of: Member, count: int = 1, sync: bool = True) -> list[Effect]:
    effects = []
    for _ in range(count):
        of.on_tick()
        effects += drain(of, sync)
    return effects
