"""The code blocks of a page, and what comments before them say about running them.

A block is run by the language of its fence: `sh` by bash, `console` command by command with the output that it shows,
`python` in one interpreter for the whole page, and by pytest if it has tests. `ini` (settings) and `json` are checked,
`text` is shown only. A comment (`<!-- … -->`) right before a fence says more:

    not run: REASON           it cannot be run here
    run by FILE               another test runs it
    before: COMMANDS          shell commands that are run first, and not shown
    before, python: CODE      the same in Python
    needs: PROGRAM ...        where a program is missing, the block is skipped
    output                    a `text` block: the output of the block above
    output, digits vary       the same; numbers and widths of columns may be others
    fails                     the block ends with an error

A page that begins with one of the first two has no other. In an output, `…` stands for anything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
LANGUAGES: Final = frozenset({"sh", "console", "python", "ini", "json", "text", "yaml"})
RUN: Final = frozenset({"sh", "console", "python"})
_FENCE: Final = re.compile(r"((?:^<!--(?:(?!-->).)*-->\n+)*)^```([a-z]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMENT: Final = re.compile(r"<!--\s*(.*?)\s*-->", re.DOTALL)
_KNOWN: Final = re.compile(
    r"(?s)(not run: .+|run by \S+|before(, python)?:\s.+|needs: .+|output(, digits vary)?|fails)"
)


@dataclass
class Block:
    line: int
    language: str
    text: str
    comments: list[str] = field(default_factory=list)

    def said(self, word: str) -> list[str]:
        """Returns what the comments that begin with this word say after it."""
        return [one.removeprefix(word).strip() for one in self.comments if one.startswith(word)]

    @property
    def is_output(self) -> bool:
        return bool(self.said("output"))

    @property
    def is_run(self) -> bool:
        return self.language in RUN and not self.said("not run:") and not self.said("run by ")


def pages() -> list[Path]:
    """Returns the pages that people write. Those of docs/reference are made, and have nothing to run."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    return sorted(page for page in found if page.parent.name != "reference")


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    above = _COMMENT.match(text)
    whole = [above[1]] if above is not None and above[1].startswith(("not run:", "run by ")) else []
    return [
        Block(
            text.count("\n", 0, found.start(2)) + 1, found[2], found[3], [*whole, *_COMMENT.findall(found[1])],
        )
        for found in _FENCE.finditer(text)
    ]  # fmt: skip


def problems(page: Path) -> list[str]:
    """Returns what is wrong with the blocks of a page, before any is run."""
    found = []
    name = page.relative_to(ROOT)
    for block in blocks(page):
        where = f"{name}:{block.line}"
        if block.language not in LANGUAGES:
            found.append(f"{where}: the fence needs one of {', '.join(sorted(LANGUAGES))}")
        found += [f"{where}: unknown comment {one!r}" for one in block.comments if not _KNOWN.fullmatch(one)]
        for file in block.said("run by "):
            if not (ROOT / file).exists() or page.name not in (ROOT / file).read_text(encoding="utf-8"):
                found.append(f"{where}: {file} does not run the blocks of {page.name}")
    text = page.read_text(encoding="utf-8")
    if len(re.findall(r"^```", text, re.MULTILINE)) != 2 * len(blocks(page)):
        found.append(f"{name}: a fence is not closed, or not at the beginning of its line")
    if re.search(r"\n\n(?: {4}|\t)(?!\s*[-*|\d])\S", _FENCE.sub("", text)):
        found.append(f"{name}: code by indentation; use a fence")
    return found


def matches(expected: str, actual: str, digits_vary: bool) -> bool:
    def pattern(line: str) -> str:
        parts = re.escape(line.rstrip())
        if digits_vary:
            parts = re.sub(r"[0-9]+(?:(?:\\[.,])[0-9]+)*", r"[0-9.,]+", parts)
            parts = re.sub(r"(?:\\ )+", r"[ \\t]+", parts)
        return parts.replace("…", ".*")

    lines = [r"(?:.*\n)*?" if line.strip() == "…" else f"{pattern(line)} *\n" for line in expected.strip().splitlines()]
    found = "".join(f"{line.rstrip()}\n" for line in actual.strip().splitlines())
    return re.fullmatch("".join(lines), found) is not None
