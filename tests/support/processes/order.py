"""The order in which processes share the tests: what takes long comes first, and what is short fills the end.

`--dist worksteal` cuts the list of tests into parts of the same length, one for each process; a process that is done
takes over the end of another one's part. In the order of files, one part would hold nearly all tests of real clusters,
and the run would end with a few long ones, each in a process that nobody can help. So folders are dealt out by how long
they take, the longest first, and each part is filled up with unit tests, of which thousands take a minute.

The tests of a folder stay together, since they share servers that only the end of the process ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

# Of one test, on two cores that have nothing else to do. Only the order depends on it, so it need not be exact. Other
# tests take no time.
SECONDS: Final = {
    "tests/simulation": 0.7,
    "tests/style": 0.2,
    "tests/system": 0.5,
    "tests/system/attacks": 1.5,
    "tests/system/clients": 0.2,
    "tests/system/clusters": 1.0,
    "tests/system/docs": 2.5,
    "tests/system/faults": 25.0,
    "tests/system/fuzz": 2.5,
    "tests/system/management": 0.1,
    "tests/system/mirrors": 2.5,
    "tests/system/page": 2.5,
    "tests/system/partitions": 4.0,
    "tests/system/spark": 1.5,
}
ALONE_S: Final = 20.0  # A test that takes as long shares nothing with others of its folder.
FOLDER_PARTS: Final = 3  # tests/system/<folder>


class Item(NamedTuple):
    """A test, and what its place depends on."""

    file: str
    needs_spark: bool = False


class Group(NamedTuple):
    seconds: float
    places: list[int]  # In the list of all tests.


def shared_out(tests: Sequence[Item], processes: int) -> list[int]:
    """Returns the places of the tests in the order in which so many processes should have them."""
    hands: list[list[int]] = [[] for _ in range(processes)]
    loads = [0.0] * processes
    for group in _groups(tests, processes):
        least = loads.index(min(loads))
        hands[least] += group.places
        loads[least] += group.seconds
    dealt = {place for hand in hands for place in hand}
    rest = [place for place in range(len(tests)) if place not in dealt]
    order: list[int] = []
    for number, hand in enumerate(hands):
        size = (len(tests) - len(order)) // (processes - number)
        rest[:0] = hand[size:]
        order += hand[:size]
        short = max(0, size - len(hand))
        order += rest[:short]
        del rest[:short]
    return order + rest


def seconds(file: str) -> float:
    """Returns how long a test of a file takes."""
    while file:
        if file in SECONDS:
            return SECONDS[file]
        file = file.rpartition("/")[0]
    return 0.0


def _groups(tests: Sequence[Item], processes: int) -> list[Group]:
    """Returns the tests that take some time, in groups that stay together: the longest first, but for those with Spark,
    of which there should be one. They come first of all, so that the process that begins with them keeps them."""
    spark = [place for place, test in enumerate(tests) if test.needs_spark]
    others = [place for place, test in enumerate(tests) if not test.needs_spark and seconds(test.file)]
    share = _sum(tests, spark + others) / processes
    groups = []
    for folder in _together(others, [_folder(test.file) for test in tests]):
        if _sum(tests, folder) < share / 2:
            groups.append(folder)
            continue
        for file in _together(folder, [test.file for test in tests]):
            is_long = seconds(tests[file[0]].file) >= ALONE_S
            groups += [[place] for place in file] if is_long else [file]
    weighed = sorted((Group(_sum(tests, group), group) for group in groups), key=lambda group: -group.seconds)
    return [Group(_sum(tests, spark), spark), *weighed] if spark else weighed


def _together(places: Iterable[int], names: Sequence[str]) -> list[list[int]]:
    """Returns the places by name, in the order in which names come first."""
    found: dict[str, list[int]] = {}
    for place in places:
        found.setdefault(names[place], []).append(place)
    return list(found.values())


def _folder(file: str) -> str:
    return "/".join(file.split("/")[:-1][:FOLDER_PARTS])


def _sum(tests: Sequence[Item], places: Iterable[int]) -> float:
    return sum(seconds(tests[place].file) for place in places)
