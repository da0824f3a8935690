"""The command line: see `faults`."""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from faults.cases.case import Case
from faults.cases.every import CASES
from faults.cases.run import Run, cluster_for
from faults.history import ledgers
from faults.history.verdict import BROKEN, KEPT, UNSAID, judge
from faults.machines.cluster import why_not

TERMINATED = 143
UNAVAILABLE = 69  # EX_UNAVAILABLE: nothing could be run here.


class Turn(NamedTuple):
    """A case that is to be run, and how."""

    case: Case
    broker: str
    seed: int
    seconds: float
    folder: Path

    def command(self) -> str:
        words = f"--case {self.case.name} --seed {self.seed} --seconds {self.seconds:g} --broker {self.broker}"
        return f"python -m faults {words}"

    def why_not(self) -> str | None:
        """Returns why it cannot run here, or None."""
        if self.broker == "rabbitmq" and self.case.only_leveret:
            return "there is no such thing in RabbitMQ"
        return why_not(self.broker, self.case.disks, self.case.clocks)


def play(turns: list[Turn]) -> Iterator[int]:
    """Runs cases on one cluster, one after the other; yields the codes of their verdicts."""
    began = time.monotonic()

    def note(text: str) -> None:
        print(f"  {time.monotonic() - began:7.2f}  {text}", flush=True)

    broker = turns[0].broker
    with cluster_for([turn.case for turn in turns], turns[0].folder / "nodes", broker) as cluster:
        cluster.start()
        note(f"{len(cluster.nodes)} nodes of {broker} serve clients")
        for turn in turns:
            histories = turn.folder / "histories"
            print(f"{turn.command()}\n  {turn.case.fault}; histories in {histories}", flush=True)
            verdict = Run(turn.case, cluster, histories, turn.seed, turn.seconds, note).play()
            print(f"  {verdict.told()}", flush=True)
            yield verdict.code


def check(words: list[str]) -> int:
    """Judges histories again."""
    parser = argparse.ArgumentParser(
        prog="python -m faults check", description="Checks the histories of earlier runs again, without any broker."
    )
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="with histories: a run says where they are")
    code = KEPT
    for folder in parser.parse_args(words).folders:
        try:
            verdict = judge(Path(folder))
        except ValueError as error:
            print(error, file=sys.stderr)
            code = max(code, UNSAID)
            continue
        print(f"{folder}: {verdict.told()}")
        code = BROKEN if BROKEN in (code, verdict.code) else max(code, verdict.code)
    return code


def write_ledgers(words: list[str]) -> int:
    """Writes histories as ledgers."""
    parser = argparse.ArgumentParser(
        prog="python -m faults ledgers", description="Writes histories in the form that `leveret pipeline audit` reads."
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="with the histories of a run")
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder of the ledgers")
    options = parser.parse_args(words)
    try:
        confirmed, delivered = ledgers.write(options.folder, options.out)
    except ValueError as error:
        print(error, file=sys.stderr)
        return UNSAID
    print(f"{confirmed} confirms and {delivered} deliveries are in {options.out}")
    return 0


def _by_row(named: tuple[str, Case]) -> int:
    return named[1].row or 99


def listed() -> str:
    width = max(map(len, CASES))
    cases = sorted(CASES.items(), key=_by_row)
    return "\n".join(f"{case.row or '':>3}  {name:{width}}  {case.fault}" for name, case in cases)


def main() -> int:
    if sys.argv[1:2] in (["check"], ["ledgers"]):
        return {"check": check, "ledgers": write_ledgers}[sys.argv[1]](sys.argv[2:])
    parser = argparse.ArgumentParser(
        prog="python -m faults",
        description="Faults of real clusters.",
        epilog="Two commands read histories of earlier runs: `check --help`, `ledgers --help`.",
    )
    parser.add_argument("--list", action="store_true", help="list the cases")
    parser.add_argument("--case", action="append", choices=CASES, default=[], metavar="NAME")
    parser.add_argument("--all", action="store_true", help="all cases, one after the other")
    parser.add_argument("--together", action="store_true", help="on one cluster, which takes long to start")
    parser.add_argument("--seed", type=int, default=None, help="decides what is done to whom; another each time")
    parser.add_argument("--seconds", type=float, default=None, help="how long faults are made; 0 for one fault")
    parser.add_argument("--broker", choices=("leveret", "rabbitmq"), default="leveret")
    parser.add_argument("--folder", default=None, help="for histories, data and logs; kept")
    options = parser.parse_args()
    if options.list:
        print(listed())
        return 0
    cases = list(CASES.values()) if options.all else [CASES[name] for name in options.case]
    if not cases:
        parser.error("--case, --all or --list is needed")
    signal.signal(signal.SIGTERM, lambda *of: sys.exit(TERMINATED))  # So that nodes and disks are ended as well.
    root = Path(options.folder or tempfile.mkdtemp(prefix="faults-"))
    turns = []
    for case in cases:
        seed = random.randrange(1 << 30) if options.seed is None else options.seed
        seconds = case.seconds if options.seconds is None else options.seconds
        turn = Turn(case, options.broker, seed, seconds, root / f"{options.broker}-{case.name}-{seed}")
        shutil.rmtree(turn.folder, ignore_errors=True)  # Of the same run before.
        if (reason := turn.why_not()) is None:
            turns.append(turn)
        else:
            print(f"{turn.command()}\n  not here: {reason}", flush=True)
    groups = [turns] if options.together and turns else [[turn] for turn in turns]
    codes = [code for group in groups for code in play(group)]
    return (BROKEN if BROKEN in codes else max(codes)) if codes else UNAVAILABLE


if __name__ == "__main__":
    sys.exit(main())
