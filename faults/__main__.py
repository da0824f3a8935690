"""The command line: see `faults`."""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from faults.cases.case import Case
from faults.cases.every import CASES
from faults.cases.run import Run, cluster_for
from faults.history import ledgers
from faults.history.verdict import BROKEN, KEPT, UNSAID, Verdict, judge
from faults.machines.cluster import why_not

TERMINATED = 143
UNAVAILABLE = 69  # EX_UNAVAILABLE: nothing could be run here.


def play(case: Case, broker: str, seed: int, seconds: float, folder: Path) -> Verdict | str:
    """Runs a case on a cluster of its own; returns the verdict, or why it cannot run here."""
    reason = why_not(broker, case.disks, case.clocks)
    if broker == "rabbitmq" and case.only_leveret:
        reason = "there is no such thing in RabbitMQ"
    if reason is not None:
        return reason
    began = time.monotonic()

    def note(text: str) -> None:
        print(f"  {time.monotonic() - began:7.2f}  {text}", flush=True)

    with cluster_for(case, folder / "nodes", broker) as cluster:
        cluster.start()
        note(f"{case.nodes} nodes of {broker} serve clients")
        return Run(case, cluster, folder / "histories", seed, seconds, note).play()


def check(folders: list[str]) -> int:
    code = KEPT
    for folder in folders:
        try:
            verdict = judge(Path(folder))
        except ValueError as error:
            print(error, file=sys.stderr)
            code = max(code, UNSAID)
            continue
        print(f"{folder}: {verdict.told()}")
        code = BROKEN if BROKEN in (code, verdict.code) else max(code, verdict.code)
    return code


def _by_row(named: tuple[str, Case]) -> int:
    return named[1].row or 99


def listed() -> str:
    width = max(map(len, CASES))
    cases = sorted(CASES.items(), key=_by_row)
    return "\n".join(f"{case.row or '':>3}  {name:{width}}  {case.fault}" for name, case in cases)


def main() -> int:
    if sys.argv[1:2] == ["check"]:
        return check(sys.argv[2:])
    if sys.argv[1:2] == ["ledgers"] and len(sys.argv) == 4:
        confirmed, delivered = ledgers.write(Path(sys.argv[2]), Path(sys.argv[3]))
        print(f"{confirmed} confirms and {delivered} deliveries are in {sys.argv[3]}")
        return 0
    parser = argparse.ArgumentParser(prog="python -m faults", description="Faults of real clusters. See also: check")
    parser.add_argument("--list", action="store_true", help="list the cases")
    parser.add_argument("--case", action="append", choices=CASES, default=[], metavar="NAME")
    parser.add_argument("--all", action="store_true", help="all cases, one after the other")
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
    codes = []
    for case in cases:
        seed = random.randrange(1 << 30) if options.seed is None else options.seed
        seconds = case.seconds if options.seconds is None else options.seconds
        folder = root / f"{options.broker}-{case.name}-{seed}"
        again = f"python -m faults --case {case.name} --seed {seed} --seconds {seconds:g} --broker {options.broker}"
        shutil.rmtree(folder, ignore_errors=True)  # Of the same run before.
        print(f"{again}\n  {case.fault}; histories in {folder / 'histories'}", flush=True)
        verdict = play(case, options.broker, seed, seconds, folder)
        if isinstance(verdict, str):
            print(f"  not here: {verdict}", flush=True)
            continue
        print(f"  {verdict.told()}", flush=True)
        codes.append(verdict.code)
    return (BROKEN if BROKEN in codes else max(codes)) if codes else UNAVAILABLE


if __name__ == "__main__":
    sys.exit(main())
