"""Regular expressions of users, searched for in names within a known time.

Policies, permissions and filters of lists are regular expressions that users send, and the thread of the event loop
searches for all of them. Python's matcher backtracks, and with some patterns a search would take years: `(a+)+$` in a
name of forty letters is one. It cannot be interrupted.

So a pattern is analysed before it is used. `re` tries the ways in which a pattern can match a text one after the other,
and their number is easily bounded (`Ways`): the end of a repetition is one choice among as many places as the text has,
choices multiply, and several of them in a row are places in order, thus `comb(length + choices, choices)`. If that is
below `STEPS_MAX`, as for usual patterns and names, `re` does the work. For a text that is too long, and for a
repetition of something that can itself match in several ways, there is `_Machine`. It tries the same ways, and
remembers with which place of the text it has been at which place of the pattern: from there it has failed, and would
fail again. So it takes at most as many steps as the pattern has parts times the text has letters. It is far slower than
`re` for each step, and gives the same answer; parts that do not branch are left to `re` in it too.

Patterns that the machine does not support (references to groups, atomic groups), and those with too many parts for it,
are refused, unless `re` is quick with them for any text. Nothing here reads a clock: every node gets the same result.

`Pattern.cost` is the longest time of a search in the longest name, in microseconds of a slow machine: the steps of the
quicker of the two, times the measured time of a step. Each pattern alone is harmless; a hundred slow ones that are
searched for in every new name are not. So the costs of a vhost's policies are added up and limited (`VHOST_COST_MAX`).
A search only says yes or no, so the length of a repetition at either end of the pattern does not matter, and those are
cut to their minimum (`_trimmed`): `.*orders.*` costs as little as `orders`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from math import comb
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]
from typing import Any, Final, NamedTuple

CHARACTERS_MAX: Final = 10_000
PARTS_MAX: Final = 256
STEPS_MAX: Final = 1_000_000  # For `re`: some ten milliseconds.
RE_STEP_US: Final = 0.03
MACHINE_STEP_US: Final = 0.6
VHOST_COST_MAX: Final = 100_000  # For all policies and operator policies of a vhost.
PATTERN_COST_MAX: Final = 20_000  # For a permission.
FILTER_COST_MAX: Final = 5_000  # For a filter that any user may apply to the names of all queues.
REMEMBER_COST: Final = 20  # Results of patterns that cost more are cached.
NAME_MAX: Final = 255  # Letters of a name or a key.
CHOICES_MAX: Final = 64
AROUNDS_MAX: Final = 8

_REPEATS: Final = (_constants.MAX_REPEAT, _constants.MIN_REPEAT)
_AROUND: Final = (_constants.ASSERT, _constants.ASSERT_NOT)
_PLAIN: Final = (
    _constants.LITERAL, _constants.NOT_LITERAL, _constants.ANY, _constants.IN, _constants.AT,
)  # fmt: skip
_CHARACTERS: Final = (_constants.LITERAL, _constants.NOT_LITERAL, _constants.ANY, _constants.IN)
_STARTS: Final = (_constants.AT_BEGINNING, _constants.AT_BEGINNING_STRING)


class BadPattern(ValueError):
    """A pattern cannot be used; the text says why."""


class Ways(NamedTuple):
    """The number of ways in which a part of a pattern can match a text: `factor` times the places of so many choices.
    """

    factor: int = 1
    choices: int = 0

    def then(self, other: Ways) -> Ways:
        return Ways(self.factor * other.factor, self.choices + other.choices)

    def steps(self, length: int) -> int:
        return self.factor * comb(length + self.choices, self.choices)


class Pattern:
    """A pattern that can be searched for in texts."""

    __slots__ = ("_machine", "_quick", "_search", "cost")

    def __init__(self, compiled: re.Pattern[str], ways: Ways | None, machine: _Machine | None, whole: bool) -> None:
        self._search = compiled.fullmatch if whole else compiled.search
        self._machine = machine
        self._quick = -1  # `re` is used for texts up to this length.
        if machine is not None:
            self.cost = machine.cost(NAME_MAX)
            lengths = (NAME_MAX, 128, 64, 32, 16, 8) if ways is not None else ()
            self._quick = next((one for one in lengths if ways and _re_cost(ways, one) <= machine.cost(one)), -1)
        if machine is None or self._quick == NAME_MAX:
            assert ways is not None
            self.cost = _re_cost(ways, NAME_MAX)

    def finds(self, text: str) -> bool:
        if len(text) <= self._quick or self._machine is None:
            return self._search(text) is not None
        return self._machine.finds(text)


@lru_cache(maxsize=4_096)
def compiled(pattern: str, ignore_case: bool = False, whole: bool = False) -> Pattern:
    """Return a pattern to search for; with `whole` it must match a text from beginning to end. Raises `BadPattern`."""
    if len(pattern) > CHARACTERS_MAX:
        raise BadPattern(f"a pattern has at most {CHARACTERS_MAX} characters")
    try:
        ready = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
        tree = _parser.parse(pattern, re.IGNORECASE if ignore_case else 0)
    except (re.error, RecursionError, OverflowError) as error:
        raise BadPattern(str(error)) from None
    if not whole and (trimmed := _trimmed(tree)) is not None:
        ready, tree = _compiler.compile(trimmed), trimmed
    ways = _ways(tree)
    if ways is not None and not whole and not _is_anchored(tree):
        ways = ways.then(Ways(1, 1))
    if ways is not None and ways.steps(NAME_MAX) <= NAME_MAX + 1:
        return Pattern(ready, ways, None, whole)
    try:
        machine = _Machine(tree, whole)
    except BadPattern:
        if ways is None or ways.steps(NAME_MAX) > STEPS_MAX:
            raise
        machine = None
    return Pattern(ready, ways, machine, whole)


def filter_of(pattern: str, ignore_case: bool = False, whole: bool = False) -> Pattern:
    """Return a pattern for the filter of a list, with a lower limit of cost. Raises `BadPattern`."""
    found = compiled(pattern, ignore_case, whole)
    if found.cost > FILTER_COST_MAX:
        raise BadPattern(_too_slow(found.cost, FILTER_COST_MAX))
    return found


def _too_slow(cost: int, cost_max: int) -> str:
    return f"a search for it can take {cost} microseconds; at most {cost_max} are allowed"


def error_of(pattern: str, cost_max: int = VHOST_COST_MAX) -> str | None:
    """Return what is wrong with a pattern; None if it can be used. The sum over a vhost is checked elsewhere."""
    try:
        cost = compiled(pattern).cost
    except BadPattern as error:
        return str(error)
    if cost > cost_max:
        return _too_slow(cost, cost_max)
    return None


def too_costly(vhost: str, cost: int) -> str:
    """Return the text for a policy with which the patterns of its vhost would be too slow together."""
    return (
        f"the patterns of all policies of vhost '{vhost}' together could take {cost} microseconds for one name; at "
        f"most {VHOST_COST_MAX} are allowed. Simpler patterns take less: without repetitions inside of repetitions, "
        "and anchored with ^"
    )


def cost_of(pattern: str) -> int:
    """Return the cost of a pattern in microseconds, at least 1; 0 for an invalid pattern, which is never searched for.
    """
    try:
        return compiled(pattern).cost
    except BadPattern:
        return 0


def finds(pattern: Pattern, text: str) -> bool:
    """Return whether a pattern finds a text. Results of slow patterns are cached, for texts that are asked repeatedly.
    """
    return pattern.finds(text) if pattern.cost < REMEMBER_COST else _found(pattern, text)


@lru_cache(maxsize=65_536)
def _found(pattern: Pattern, text: str) -> bool:
    return pattern.finds(text)


def _re_cost(ways: Ways, length: int) -> int:
    return 1 + int(ways.steps(length) * RE_STEP_US)


def _trimmed(tree: Any) -> Any | None:
    """Return the pattern with repetitions of single characters at its ends cut to their minimum; None if it has none.
    """
    items = list(tree)
    # A search can as well begin after a repetition that is at the start of the pattern.
    for at in {0, len(items) - 1} if items else ():
        kind, value = items[at]
        if kind in _REPEATS and len(value[2]) == 1 and value[2][0][0] in _CHARACTERS and value[0] < value[1]:
            items[at] = (kind, (value[0], value[0], value[2]))
    if items == list(tree):
        return None
    left = [item for item in items if item[0] not in _REPEATS or item[1][1]]
    return _parser.SubPattern(tree.state, left)


# -- How many ways -------------------------------------------------------------------------------------------------


def _is_anchored(tree: Any) -> bool:
    if tree.state.flags & re.MULTILINE or not len(tree):
        return False
    kind, value = tree[0]
    return kind is _constants.AT and value in _STARTS


def _ways(tree: Any) -> Ways | None:
    """Return the ways of a sequence; None if there is no useful bound."""
    found = Ways()
    for item in tree:
        one = _ways_of(*item)
        if one is None:
            return None
        found = found.then(one)
        if found.choices > CHOICES_MAX or found.factor > STEPS_MAX:
            return None
    return found


def _ways_of(kind: Any, value: Any) -> Ways | None:
    if kind in _PLAIN:
        return Ways()
    if kind is _constants.SUBPATTERN:
        return _ways(value[3])
    if kind in _AROUND:
        return _ways(value[1])
    if kind is _constants.BRANCH:
        parts = [_ways(part) for part in value[1]]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        return Ways(sum(part.factor for part in known), max(part.choices for part in known))
    if kind in _REPEATS or kind is _constants.POSSESSIVE_REPEAT:
        return _ways_of_repeat(*value)
    if kind is _constants.ATOMIC_GROUP:
        return _ways(value)
    if kind is _constants.GROUPREF:
        return Ways(2)  # Not 1: `_Machine` does not remember what the group has found.
    return None


def _ways_of_repeat(least: int, most: int, body: Any) -> Ways | None:
    once = _ways(body)
    if once is None or not body.getwidth()[0]:  # `re` tries repetitions of an empty match too.
        return None
    if once == Ways():
        if least == most:
            return once if least <= NAME_MAX else None
        return Ways(most - least + 1) if most - least < NAME_MAX else Ways(1, 1)
    if most > CHOICES_MAX:
        return None
    factor, choices = (once.factor + (least < most)) ** int(most), once.choices * int(most)
    return Ways(factor, choices) if factor <= STEPS_MAX and choices <= CHOICES_MAX else None


# -- One step for each place ---------------------------------------------------------------------------------------

Match = Callable[[str, int], re.Match[str] | None]


class _Part(NamedTuple):
    """A part of fixed width to match, or a fork; and the parts that follow."""

    match: Match | None
    width: int
    ways: tuple[int, ...]


class _Machine:
    """Searches by trying each pair of a place in the pattern and a place in the text once."""

    __slots__ = ("_arounds", "_steps", "parts", "whole")

    def __init__(self, tree: Any, whole: bool) -> None:
        self.parts: list[_Part] = []
        self.whole = whole
        self._arounds = self._steps = 0
        self._add(tree)

    def cost(self, length: int) -> int:
        """Return the cost: each part is tried at each place at most once, and a look-around reads the whole text."""
        places = length + 1
        steps = len(self.parts) * places * MACHINE_STEP_US
        return 1 + int(steps + self._arounds * places * length * RE_STEP_US)

    def finds(self, text: str) -> bool:
        parts, end = self.parts, len(text)
        done = len(parts)
        seen = bytearray((done + 1) * (end + 1))
        for start in range(1 if self.whole else end + 1):
            todo = [(0, start)]
            while todo:
                number, at = todo.pop()
                mark = number * (end + 1) + at
                if seen[mark]:
                    continue
                seen[mark] = 1
                if number == done:
                    if not self.whole or at == end:
                        return True
                    continue
                match, width, ways = parts[number]
                if match is None or match(text, at) is not None:
                    for way in ways:
                        todo.append((way, at + width))
        return False

    # -- Building ------------------------------------------------------------------------------------------------

    def _add(self, tree: Any) -> None:
        self._steps += 1
        if self._steps > 4 * PARTS_MAX:
            raise BadPattern("a pattern must not repeat that often")
        straight: list[Any] = []  # Consecutive items that do not branch make one part.
        for item in tree:
            if _is_straight(tree.state, item):
                straight.append(item)
                self._arounds += item[0] in _AROUND
                continue
            self._add_straight(tree.state, straight)
            straight = []
            self._add_item(*item)
        self._add_straight(tree.state, straight)
        if self._arounds > AROUNDS_MAX:
            raise BadPattern(f"a pattern with such repetitions looks around at most {AROUNDS_MAX} times")

    def _append(self, part: _Part) -> int:
        if len(self.parts) >= PARTS_MAX:
            raise BadPattern(f"a pattern with such repetitions has at most {PARTS_MAX} parts")
        self.parts.append(part)
        return len(self.parts) - 1

    def _add_straight(self, state: Any, items: list[Any]) -> None:
        if items:
            sequence = _parser.SubPattern(state, items)
            match = _compiler.compile(sequence).match
            self._append(_Part(match, sequence.getwidth()[0], (len(self.parts) + 1,)))

    def _add_item(self, kind: Any, value: Any) -> None:
        if kind is _constants.SUBPATTERN and not value[1] and not value[2]:
            self._add(value[3])
        elif kind is _constants.BRANCH:
            self._add_branch(value[1])
        elif kind in _REPEATS:
            self._add_repeat(*value)
        else:
            raise BadPattern("a pattern that can match in so many ways must not refer to groups, nor look far around")

    def _add_branch(self, branches: list[Any]) -> None:
        ends = []
        for branch in branches[:-1]:
            fork = self._fork()
            self._add(branch)
            ends.append(self._fork())
            self._lead(fork, fork + 1, len(self.parts))
        self._add(branches[-1])
        for end in ends:
            self._lead(end, len(self.parts))

    def _add_repeat(self, least: int, most: Any, body: Any) -> None:
        for _ in range(least):
            self._add(body)
        if most is _constants.MAXREPEAT:
            fork = self._fork()
            self._add(body)
            self._lead(self._fork(), fork)
            self._lead(fork, fork + 1, len(self.parts))
            return
        forks = []
        for _ in range(most - least):
            forks.append(self._fork())
            self._add(body)
        for fork in forks:
            self._lead(fork, fork + 1, len(self.parts))

    def _fork(self) -> int:
        return self._append(_Part(None, 0, ()))

    def _lead(self, fork: int, *ways: int) -> None:
        self.parts[fork] = _Part(None, 0, ways)


def _is_straight(state: Any, item: Any) -> bool:
    """Return whether an item has a fixed width and matches in one way at most. A look-around reads the text once."""
    kind, value = item
    if kind in _AROUND:
        around = _ways(value[1])
        return around is not None and around.steps(NAME_MAX) <= NAME_MAX + 1
    low, high = _parser.SubPattern(state, [item]).getwidth()
    return bool(low == high) and _ways_of(kind, value) == Ways()
