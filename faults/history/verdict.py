"""All checkers for the histories in a folder.

`verdict.json` is written there. Exit codes are those of `leveret pipeline audit`: 0 all promises were kept, 1 one was
broken, 2 the histories do not tell (the run was interrupted, or nothing happened in it).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from faults.history import leases, locks, messages, recovery, registers
from faults.history.entries import Histories

KEPT, BROKEN, UNSAID = 0, 1, 2


class Verdict(NamedTuple):
    """What the checkers say of a run."""

    code: int
    figures: dict[str, int]
    findings: list[str]

    def told(self) -> str:
        figures = ", ".join(f"{name} {count}" for name, count in self.figures.items())
        first = {KEPT: "ALL PROMISES KEPT", BROKEN: "PROMISES BROKEN", UNSAID: "CANNOT SAY"}[self.code]
        return "\n".join([f"{first}: {figures}", *(f"  {text}" for text in self.findings)])


def judge(folder: Path) -> Verdict:
    """Raises ValueError if these are no histories."""
    histories = Histories(folder)
    figures: dict[str, int] = {}
    findings: list[str] = list(histories.case.get("noticed", []))
    for check in (messages.check, locks.check, leases.check, registers.check, recovery.check):
        found = check(histories)
        figures |= found.figures
        findings += found.findings
    code = BROKEN if findings else KEPT
    if not histories.case.get("finished"):
        findings.append("the run did not end, so what is not delivered may be in the queue")
        code = UNSAID
    elif not any(figures[name] for name in ("confirmed", "held", "operations")):
        findings.append("no client had any success, so nothing was tried")
        code = UNSAID
    verdict = Verdict(code, figures, findings)
    (folder / "verdict.json").write_text(json.dumps(verdict._asdict(), indent=1) + "\n", encoding="utf-8")
    return verdict
