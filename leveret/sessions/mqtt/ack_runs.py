"""Acknowledgements in a row: packets that are a head, a length of 2 and a packet identifier, read many at a time.

A client that is sent messages in bundles acknowledges them in bundles. Nothing here runs once for each packet.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import unpack_from
from typing import Final

HEADS: Final = frozenset((0x40, 0x50, 0x62, 0x70))  # PUBACK, PUBREC, PUBREL, PUBCOMP.


def run_at(data: bytes, at: int) -> int:
    """How many whole packets of this form, and with the same head, begin at `at`."""
    whole = at + (len(data) - at) // 4 * 4
    heads, sizes = data[at:whole:4], data[at + 1 : whole : 4]
    return min(len(heads) - len(heads.lstrip(data[at : at + 1])), len(sizes) - len(sizes.lstrip(b"\2")))


def ids_at(data: bytes, at: int, count: int) -> tuple[int, ...]:
    """Their packet identifiers."""
    return unpack_from(f">{2 * count}H", data, at)[1::2]


def answers_to(data: bytes, at: int, count: int, head: int) -> bytes:
    """The same packets, with another head."""
    answers = bytearray(data[at : at + 4 * count])
    answers[0::4] = bytes((head,)) * count
    return bytes(answers)


def ranges_of(ids: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Packet identifiers as ranges: the first, and how many."""
    ranges: list[tuple[int, int]] = []
    for packet_id in sorted(ids):
        if ranges and sum(ranges[-1]) == packet_id:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + 1)
        else:
            ranges.append((packet_id, 1))
    return tuple(ranges)


def numbered_ranges(ids: list[int], number: int) -> tuple[tuple[int, int, int], ...]:
    """Packet identifiers whose messages have consecutive numbers, as ranges: the first, how many, and its number."""
    ranges: list[tuple[int, int, int]] = []
    begin = 0
    for at in range(1, len(ids) + 1):
        if at == len(ids) or ids[at] != ids[at - 1] + 1:
            ranges.append((ids[begin], at - begin, number + begin))
            begin = at
    return tuple(ranges)
