"""Patterns of users: they find what `re` finds, and none takes long."""

from __future__ import annotations

import random
import re
from re import _parser  # type: ignore[attr-defined]

import pytest

from leveret.base import safe_regex
from leveret.base.safe_regex import BadPattern, compiled, error_of

LONG = "a" * 254 + "!"
# Each keeps `re` busy for longer than anybody waits, if it is asked to find it in LONG.
ENDLESS = (
    "(a+)+$", "^(a*)*$", "^(a|a)*$", "(a|aa)+$", "^((a)*)*$", "(a+){9,}$", "^(a?)*$", "(a?){60}a{60}$",
    "(.*)(.*)(.*)(.*)x", "(?:a{1,50}){1,50}$", "(?:(?=.*a)a+)+$", "^(([a-z])+.)+[A-Z]([a-z])+$", "(?i)(A+)+$",
    ".*.*.*.*.*.*x", "((((((((((){200}){200}){9}){9}){9}){9}){9}){9}){9}){9}x",
)  # fmt: skip


@pytest.mark.parametrize("pattern", ENDLESS)
def test_none_takes_for_ever(pattern: str) -> None:
    """That this ends at all is what is tested."""
    try:
        found = compiled(pattern).finds(LONG)
    except BadPattern as error:
        assert "pattern" in str(error)
    else:
        assert not found


@pytest.mark.parametrize("pattern", ENDLESS[:8])
def test_such_patterns_are_right_where_they_match(pattern: str) -> None:
    assert compiled(pattern).finds("a" * 254)


@pytest.mark.parametrize(
    "pattern, found, missed",
    [
        (r"^(?!amq\.).*", "orders", "amq.topic"),
        (r"^(?!amq\.)(?!tmp).*\.ha\..*$", "eu.ha.orders", "amq.ha.x"),
        ("", "anything", None),
        ("^(one|two|three)$", "two", "four"),
        (r"(\d{4}-){2}x", "2024-2025-x", "2024-x"),
        (r"(a)\1", "baab", "ab"),
        ("(?>a+)b", "aab", "aa"),
        ("(?i)ORDERS", "my.orders", "order"),
        ("é|ü", "mü", "mu"),
    ],
)
def test_usual_patterns(pattern: str, found: str, missed: str | None) -> None:
    assert compiled(pattern).finds(found) == (re.search(pattern, found) is not None)
    if missed is not None:
        assert not compiled(pattern).finds(missed)


@pytest.mark.parametrize("pattern", ["[", "(", "*", "(?P<", "a" * 10_001, r"(a)(\1+)+$", "(?>a+)+$", "(" * 5_000])
def test_refused(pattern: str) -> None:
    assert error_of(pattern)
    with pytest.raises(BadPattern):
        compiled(pattern)


@pytest.mark.parametrize(
    ("cheap", "pattern"),
    [
        ("orders", ".*orders.*"),
        ("orders", "[a-z]*orders.?"),
        ("^orders", "^orders.*"),
        (r"^(?!amq\.)", r"^(?!amq\.).*"),
        ("a.", "a+.+?"),
        ("", ".*"),
    ],
)
def test_repetitions_at_the_ends_cost_nothing(cheap: str, pattern: str) -> None:
    assert compiled(pattern).cost == compiled(cheap).cost <= 10
    for text in ("", "a", "orders", "my orders", "amq.orders", "a\n", "\na", "ab"):
        assert compiled(pattern).finds(text) == (re.search(pattern, text) is not None), text


def test_the_cost_is_of_the_longest_name() -> None:
    assert compiled("^orders$").cost == 1
    assert compiled("(a|b)*(c|d)*$").cost > compiled("(a|b)*$").cost > compiled("b$").cost
    assert compiled("(a?){60}a{60}$").cost > 100 * compiled("^.*$").cost
    assert all(safe_regex.cost_of(pattern) <= safe_regex.VHOST_COST_MAX for pattern in ENDLESS)
    assert safe_regex.cost_of("[") == 0


def test_one_that_costs_too_much_by_itself() -> None:
    assert error_of("(a+){60}b", safe_regex.PATTERN_COST_MAX) is not None
    assert error_of("(a+){60}b") is None


def test_filters_of_lists_are_cheap() -> None:
    assert safe_regex.filter_of(".*.*a.*b.*", ignore_case=True).finds("xAyB")
    with pytest.raises(BadPattern, match="microseconds"):
        safe_regex.filter_of("(a?){40}$")


def test_what_took_long_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    slow, quick = compiled("(q+)+$"), compiled("q$")

    def search(machine: safe_regex._Machine, text: str) -> bool:
        asked.append(text)
        return True

    monkeypatch.setattr(safe_regex._Machine, "finds", search)
    assert all(safe_regex.finds(slow, "remembered?") for _ in range(3))
    assert not any(safe_regex.finds(quick, "remembered?") for _ in range(3))
    assert asked == ["remembered?"]


def test_case_and_the_whole_text() -> None:
    assert compiled("ORD", ignore_case=True).finds("my orders")
    assert not compiled("ORD").finds("my orders")
    assert compiled("a|ab", whole=True).finds("ab")
    assert not compiled("a|ab", whole=True).finds("abc")


def _made(rng: random.Random, depth: int) -> str:
    kind = rng.choice("lllcsgbrkn^$w" if depth else "llc")

    def inner() -> str:
        return _made(rng, depth - 1)

    if kind == "l":
        return rng.choice("abA.")
    if kind == "c":
        return rng.choice(["[ab]", "[^a]", r"\w", "[a-b]"])
    if kind == "s":
        return inner() + inner()
    if kind == "g":
        return f"({inner()})"
    if kind == "b":
        return f"(?:{inner()}|{inner()})"
    if kind == "r":
        return f"(?:{inner()}){rng.choice(['*', '+', '?', '{2}', '{1,3}', '*?', '{2,}'])}"
    if kind == "k":
        return f"(?={inner()})"
    if kind == "n":
        return f"(?!{inner()})"
    return {"^": "^", "$": "$", "w": r"\b"}[kind]


@pytest.mark.parametrize("seed", range(4))
def test_the_machine_finds_what_re_finds(seed: int) -> None:
    rng = random.Random(seed)
    asked = 0
    for _ in range(1_500):
        pattern = _made(rng, 4)
        flags = rng.choice([0, re.IGNORECASE])
        try:
            machines = [safe_regex._Machine(_parser.parse(pattern, flags), whole) for whole in (False, True)]
        except BadPattern:
            continue
        for _ in range(6):
            text = "".join(rng.choice("abAB!") for _ in range(rng.randrange(9)))
            expected = re.compile(pattern, flags)
            assert machines[0].finds(text) == (expected.search(text) is not None), (pattern, text)
            assert machines[1].finds(text) == (expected.fullmatch(text) is not None), (pattern, text)
            asked += 1
    assert asked > 5_000
