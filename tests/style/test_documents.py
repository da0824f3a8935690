"""Commands that documents show are understood as they stand there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from leveret.cli.ctl.base.parse import parse
from leveret.cli.ctl.main import COMMANDS
from leveret.cli.main import build_parser
from leveret.node.config import schema

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```\n(.*?)^```", re.MULTILINE | re.DOTALL)
NAMES = ("operations.md", "migrating-from-rabbitmq.md")
LINKED = (*NAMES, "reliability.md", "security.md")


def lines(name: str) -> list[str]:
    return [line for block in BLOCK.findall((DOCS / name).read_text()) for line in block.splitlines()]


@pytest.mark.parametrize("name", NAMES)
def test_commands(name: str) -> None:
    found = 0
    for line in lines(name):
        line = re.split(r" [>|] ", re.sub(r"^source <\((.*)\)$", r"\1", line))[0]
        words = shlex.split(line) if line.startswith("leveret") else []
        if words[:1] == ["leveretctl"]:
            command, _ = parse(words[1:], COMMANDS)
            assert command in COMMANDS, line
            found += 1
        elif words[:1] == ["leveret"]:
            assert build_parser().parse_args(words[1:]).command
            found += 1
    assert found >= 5


@pytest.mark.parametrize("name", NAMES)
def test_settings(name: str) -> None:
    for line in lines(name):
        setting = re.fullmatch(r"([a-z_.]+) = (\S+)", line)
        if setting is not None:
            rule = schema.find(setting[1])
            assert rule is not None and isinstance(rule.rule, schema.Used), line
            rule.rule.parse(setting[2])


@pytest.mark.parametrize("name", LINKED)
def test_links(name: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", (DOCS / name).read_text()):
        assert (DOCS / target).exists(), target


def test_the_checks_of_the_table() -> None:
    text = (DOCS / "operations.md").read_text()
    table = text.partition("## Health checks")[2].partition("Liveness")[0]
    for row in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE):
        for command in re.findall(r"`([^`]+)`", row):
            parse(shlex.split(command), COMMANDS)
            assert command.split()[0] in COMMANDS


def test_faults_are_shown_by_tests_that_exist() -> None:
    """In the tables of what can go wrong: each row names one, and each that is named is there."""
    text = (DOCS / "reliability.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| fault")]
    assert len(rows) > 20
    for row in rows:
        assert row.count("|") == 7, row
        named = re.findall(r"`([a-z_/]+\.py)::(test_[a-z_]+)`", row)
        assert named, row
        for file, test in named:
            assert re.search(rf"^(async )?def {test}\(", (DOCS.parent / "tests" / file).read_text(), re.MULTILINE), row


def test_nothing_is_said_to_be_on_the_package_index() -> None:
    """Until it is: whoever pastes such a line gets an error, or somebody else's package."""
    root = DOCS.parent
    files = [root / "README.md", *DOCS.glob("*.md"), *(root / "leveret").rglob("*.py")]
    files += (root / "packaging").rglob("*")
    named = re.compile(r"pip install [^`\n]*\bleveret(?!\S*/)(\[|\b)(?!/)")
    for file in files:
        if file.is_file():
            text = file.read_text(encoding="utf-8", errors="replace")
            lines = [line for line in text.splitlines() if "pip install" in line]
            bad = [line for line in lines if named.search(line.replace("/opt/leveret/bin/pip", "pip"))]
            assert not bad, f"{file}: {bad}"
