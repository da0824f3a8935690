"""What the documents show works: commands, settings, links, and the files and tests that they name."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from faults.cases.every import CASES
from leveret.cli.ctl.base.parse import parse
from leveret.cli.ctl.main import COMMANDS
from leveret.cli.main import build_parser
from leveret.node.config import schema
from tests.support.pages.blocks import blocks, matches, pages, problems

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
PROMPT = re.compile(r"^(\w*\$ +|source <\()")
NAMED_FILE = re.compile(r"`([\w.-]+(?:/[\w.-]+)*\.(?:py|md|js|toml|lock|yaml|txt))`")
MADE = {"results.md", "leveret.conf", "definitions.json"}  # Files that a reader has or makes, not this repository.


def lines(page: Path) -> Iterator[str]:
    """Yields the lines of commands and settings, with continued lines joined."""
    for block in blocks(page):
        if block.language in ("sh", "console", "ini"):
            yield from block.text.replace("\\\n", " ").splitlines()


def test_blocks() -> None:
    """Each block of code is run by a test, or says why it cannot be; see `tests/support/pages/blocks.py`."""
    assert [problem for page in pages() for problem in problems(page)] == []


def test_json() -> None:
    for page in pages():
        for block in blocks(page):
            if block.language == "json":
                json.loads(block.text)


def test_outputs_are_compared() -> None:
    assert matches("a\n…\nb  12 …", "a\n1\n2\nb 7 x", digits_vary=True)
    assert matches("a … c", "a b c\n", digits_vary=False)
    assert not matches("a 1", "a 2", digits_vary=False)
    assert not matches("a", "a\nb", digits_vary=False)


def test_commands() -> None:
    found = 0
    for page in PAGES:
        for line in lines(page):
            command = re.split(r" [>|] |\)$| &$", PROMPT.sub("", line))[0]
            words = shlex.split(command, comments=True) if command.startswith("leveret") else []
            if words[:1] == ["leveretctl"]:
                name, _ = parse(words[1:], COMMANDS)
                assert name in COMMANDS, f"{page.name}: {line}"
                found += 1
            elif words[:1] == ["leveret"] and words[1] != "pipeline":  # Its jobs have parsers that need PySpark.
                assert build_parser().parse_args(words[1:]).command
                found += 1
    assert found > 50


def test_settings() -> None:
    found = 0
    for page in PAGES:
        for line in lines(page):
            setting = re.fullmatch(r"([a-z_0-9.]+) = (\S+)", line)
            if setting is not None:
                rule = schema.find(setting[1])
                assert rule is not None and isinstance(rule.rule, schema.Used), f"{page.name}: {line}"
                if rule.rule.parse is not schema.readable_file:  # Which is not on this machine.
                    rule.rule.parse(setting[2])
                found += 1
    assert found > 20


def test_links() -> None:
    """Relative links lead to files and headings that exist."""
    broken = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
            path, _, heading = target.partition("#")
            file = page.parent / path if path else page
            if "://" not in target and (not file.exists() or (heading and heading not in headings(file))):
                broken.append(f"{page.name}: {target}")
    assert broken == []


def headings(page: Path) -> set[str]:
    """Returns the anchors of a page, made as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_named_files() -> None:
    """Files in backquotes exist; a path may leave out the folders at its beginning."""
    files = {str(file.relative_to(ROOT)) for file in _sources()}
    missing = []
    for page in PAGES:
        for name in NAMED_FILE.findall(page.read_text(encoding="utf-8")):
            if name not in MADE and not any(file == name or file.endswith(f"/{name}") for file in files):
                missing.append(f"{page.name}: {name}")
    assert missing == []


def _sources() -> Iterator[Path]:
    yield from ROOT.glob("*")
    for folder in ("leveret", "pyspark_leveret", "simulation", "benchmarks", "faults", "tests", "docs", "packaging"):
        yield from (ROOT / folder).rglob("*")


def test_the_checks_of_the_table() -> None:
    table = (DOCS / "operations.md").read_text().partition("## Health checks")[2].partition("\n\nUse `ping`")[0]
    rows = re.findall(r"^\| (`.+?) \|", table, re.MULTILINE)
    assert len(rows) > 5
    for command in re.findall(r"`([^`]+)`", " ".join(rows)):
        parse(shlex.split(command), COMMANDS)
        assert command.split()[0] in COMMANDS


def test_faults_are_shown_by_tests_that_exist() -> None:
    """Each row of the tables in reliability.md names a test, and each named test exists."""
    text = (DOCS / "reliability.md").read_text()
    tabled = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith(("| fault", "| #"))]
    cases = re.findall(r"^\| \d* \| `--case ([a-z-]+) --seed \d+ --seconds \d+` \|", text, re.MULTILINE)
    rows = [line for line in tabled if "| `--case " not in line]
    assert len(rows) > 20 and len(cases) == len(tabled) - len(rows) > 20 and not set(cases) - CASES.keys()
    for row in rows:
        assert row.count("|") == 7, row
        named = re.findall(r"`([a-z_/]+\.py)::(test_[a-z_]+)`", row)
        assert named, row
        for file, test in named:
            assert re.search(rf"^(async )?def {test}\(", (ROOT / "tests" / file).read_text(), re.MULTILINE), row


def test_glossary() -> None:
    """The glossary has at most forty words, in alphabetical order, and each is used in another page or in the code."""
    words = re.findall(r"^\| ([a-z ]+) \|", (DOCS / "glossary.md").read_text(), re.MULTILINE)[1:]
    assert 0 < len(words) <= 40
    assert words == sorted(words)
    others = [page for page in PAGES if page.name != "glossary.md"]
    text = "\n".join(file.read_text(encoding="utf-8") for file in (*others, *(ROOT / "leveret").rglob("*.py")))
    assert [word for word in words if not re.search(rf"\b{word}", text, re.IGNORECASE)] == []


def test_nothing_is_said_to_be_on_the_package_index() -> None:
    """Nothing is published yet: a pasted `pip install leveret` would fail, or install somebody else's package."""
    files = [ROOT / "README.md", *DOCS.glob("*.md"), *(ROOT / "leveret").rglob("*.py")]
    files += (ROOT / "packaging").rglob("*")
    named = re.compile(r"pip install [^`\n]*\bleveret(?!\S*/)(\[|\b)(?!/)")
    for file in files:
        if file.is_file():
            text = file.read_text(encoding="utf-8", errors="replace")
            found = [line for line in text.splitlines() if "pip install" in line]
            bad = [line for line in found if named.search(line.replace("/opt/leveret/bin/pip", "pip"))]
            assert not bad, f"{file}: {bad}"
