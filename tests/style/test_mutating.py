"""Whether deliberate bugs find the code that they change, and say so when they do not."""

from __future__ import annotations

import pytest

from tests.support import mutating
from tests.support.mutating import Change, find, replace

JOBS = """
class Write:
    def perform(self, disk: Disk) -> None:
        # Why it does that.
        paths: list[str] = [
            *self.paths,
        ]
        if self.syncing:
            disk.sync("a"
                      "b", paths)
        if self.syncing:
            disk.close()

    def close(self):
        self.open = False
"""
READS = """
class Write:
    def close(self):
        self.open = None
        return self.open
"""
TEXTS = {"leveret.log.jobs": JOBS, "leveret.log.reads": READS, "leveret.other.jobs": JOBS}


def found(function: str, old: str, new: str = "pass") -> str:
    return find("the bug", Change(function, old, new), TEXTS).module


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("if self.syncing: disk.close()", "pass"),
        ("if self.syncing:\n    disk.close()", ""),
        ("paths = [*self.paths]", "paths = []"),
        ("disk.sync('ab', paths)", "pass"),
        ("'ab'", "'c'"),
        ("    disk.close()\n", "    disk.open()\n"),
    ],
)
def test_code_is_found_however_it_is_written(old: str, new: str) -> None:
    assert found("log.jobs:Write.perform", old, new) == "leveret.log.jobs"


def test_of_several_functions_that_is_meant_which_has_the_code() -> None:
    assert found("Write.close", "return self.open") == "leveret.log.reads"
    assert found("reads:Write.close", "self.open = None") == "leveret.log.reads"


@pytest.mark.parametrize(
    ("function", "old", "problem"),
    [
        ("Write.perform", "disk.close()", "the bug: which Write.perform.*leveret.log.jobs, leveret.other.jobs"),
        ("Write.run", "disk.close()", "the bug: there is no function Write.run$"),
        ("Read.close", "disk.close()", "there is no function Read.close, but .*leveret.log.reads:Write.close"),
        ("log.jobs:Write.perform", "disk.open()", "the bug: it changes log.jobs:Write.perform.*no longer there"),
        ("log.jobs:Write.perform", "self.syncing", "the bug: it changes log.jobs:Write.perform.*2 times"),
    ],
)
def test_what_is_not_found_is_named(function: str, old: str, problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        found(function, old, "False")


class Base:
    def greeting(self) -> str:
        return "hello"


class Guest(Base):
    def greeting(self) -> str:
        if super().greeting():
            return super().greeting() + " guest"
        return ""

    @property
    def name(self) -> str:
        return "guest"

    @staticmethod
    def number() -> int:
        return 1


@pytest.fixture
def in_this_module(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(__file__, encoding="utf-8") as file:
        text = file.read()
    monkeypatch.setattr(mutating, "_texts", lambda: {__name__: text})


@pytest.mark.usefixtures("in_this_module")
def test_every_kind_of_method_is_changed_and_changed_back() -> None:
    guest, greeting, number = Guest(), Guest().greeting, Guest.number
    with pytest.MonkeyPatch.context() as patch:
        replace(
            patch,
            "the bug",
            Change(
                "Guest.greeting", "if super().greeting(): ...", "if not super().greeting(): ...\nelse:\n    return '?'"
            ),
            Change("Guest.greeting", "return ''", "return '!'"),
            Change("Guest.name", "'guest'", "'host'"),
            Change("Guest.number", "return 1", "return 2"),
        )
        assert (guest.greeting(), greeting(), guest.name, number()) == ("?", "?", "host", 2)
    assert (guest.greeting(), greeting(), guest.name, number()) == ("hello guest", "hello guest", "guest", 1)


@pytest.mark.usefixtures("in_this_module")
def test_a_bug_that_changes_nothing_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match=r"the bug: Base.greeting does the same"):
        replace(monkeypatch, "the bug", Change("Base.greeting", "return 'hello'", 'return "hello"'))
    with pytest.raises(AssertionError, match=r"the bug: Guest.greeting must call super"):
        replace(monkeypatch, "the bug", Change("Guest.greeting", "if super().greeting(): ...", ""))


@pytest.mark.usefixtures("in_this_module")
def test_the_only_statement_may_go(monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, "the bug", Change("Base.greeting", "return 'hello'", ""))
    assert Base().greeting() is None
