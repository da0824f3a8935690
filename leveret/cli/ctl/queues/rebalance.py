"""Commands that spread queues over nodes."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from leveret.base.control_protocol import VALIDATION
from leveret.base.exit_codes import DATA_ERROR, UNAVAILABLE, USAGE
from leveret.cli.ctl.base.command import Command, Failed, Given, Output, Report
from leveret.metadata.rebalance_names import PLAN, STRATEGIES, short

if TYPE_CHECKING:
    from leveret.cli.ctl.base.session import Session

BALANCE: Final = "Queues"
KINDS: Final = ("all", "classic", "quorum", "stream")
MASTERS: Final = "masters"  # The unit of loads that count queues.
WHYS_MAX: Final = 5
CUT_SHORT: Final = "{} moves are the limit of one run; to move the rest, run it again"


def rebalance(session: Session, given: Given) -> Output:
    asked = _asked(given)
    dry_run = given.flag("dry-run")
    session.banner("What a rebalance would do ..." if dry_run else f"Rebalancing {asked['kind']} queues ...", now=True)
    answer = session.ask_with_progress("rebalance", {**asked, "dry_run": dry_run})
    text = _told(answer)
    if answer["failed"]:
        raise Failed(UNAVAILABLE, text, value=answer)
    return Report(answer, text)


def _asked(given: Given) -> dict[str, Any]:
    """Raises Failed."""
    kind = given.words[0] if given.words else "all"
    strategy = given.switches.get("strategy")
    if kind not in KINDS:
        raise Failed(USAGE, f"unknown type of queue '{kind}'; use one of: {', '.join(KINDS)}", VALIDATION)
    if strategy is not None and strategy not in (*STRATEGIES, PLAN):
        raise Failed(USAGE, f"unknown strategy '{strategy}'; use one of: {', '.join((*STRATEGIES, PLAN))}", VALIDATION)
    most = given.switches.get("max-moves")
    if most is not None and not (str(most).isdecimal() and int(most) > 0):
        raise Failed(USAGE, "--max-moves must be a number above 0", VALIDATION)
    if "from" in given.switches and "to" not in given.switches:
        raise Failed(USAGE, "--from needs --to, the node to move the queues to", VALIDATION)
    wanted = {
        "kind": kind,
        "strategy": strategy,
        "vhosts": given.switches.get("vhost-pattern"),
        "queues": given.switches.get("queues", given.switches.get("queue-pattern")),
        "source": given.switches.get("from"),
        "target": given.switches.get("to"),
        "moves_max": None if most is None else int(most),
        "plan": _plan(str(given.switches["plan"])) if "plan" in given.switches else None,
    }
    return {name: value for name, value in wanted.items() if value is not None}


def _plan(path: str) -> Any:
    try:
        with open(path, "rb") as file:
            return json.load(file)
    except OSError as error:
        raise Failed(USAGE, f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise Failed(DATA_ERROR, f"{path} is not valid JSON: {error}") from None


def is_cut_short(answer: dict[str, Any]) -> bool:
    """Tell whether the plan stops at the limit of moves for one run."""
    return bool(len(answer["moves"]) >= answer["moves_max"])


def summary(answer: dict[str, Any], moved: int) -> str:
    """Summarize a rebalance: the loads, the number of moves, and why the rest stays."""
    lines = _loads(answer)
    lines.append(f"{moved} queues moved; strategy: {answer['strategy']}")
    whys = Counter(one["why"] for one in (*answer["failed"], *answer["stays"]))
    lines += (f"{count} queue{'s' if count > 1 else ''} not moved: {why}" for why, count in whys.most_common(WHYS_MAX))
    if is_cut_short(answer):
        lines.append(CUT_SHORT.format(len(answer["moves"])))
    return "\n".join(lines)


def _after(answer: dict[str, Any]) -> dict[str, float]:
    """Return the masters of each node now: as planned, without the moves that failed."""
    after = dict(answer["after"])
    if answer["unit"] == MASTERS:
        planned = {(one["vhost"], one["queue"]): one for one in answer["moves"]}
        for one in answer["failed"]:
            move = planned[one["vhost"], one["queue"]]
            after[move["to"]] -= 1
            after[move["from"]] += 1
    return after


def _loads(answer: dict[str, Any]) -> list[str]:
    """Before and after, as a table."""
    unit, before, after = answer["unit"], answer["before"], _after(answer)
    width = max([len("node"), *map(len, before)])
    rows = [("before", "after"), *((short(before[name]), short(after[name])) for name in before)]
    widths = [max(len(row[place]) for row in rows) for place in (0, 1)]
    lines = [
        f"{name:<{width}}  {one:>{widths[0]}}  {other:>{widths[1]}}"
        for name, (one, other) in zip(("node", *before), rows, strict=True)
    ]
    lines[0] += f"  {unit}"
    return lines


def _told(answer: dict[str, Any]) -> str:
    """The loads, each move, and what stays."""
    lines = _loads(answer)
    failed = {(one["vhost"], one["queue"]): one["why"] for one in answer["failed"]}
    for move in answer["moves"]:
        line = f"{move['queue']} in {move['vhost']}: {move['from']} → {move['to']} ({move['why']})"
        why = failed.get((move["vhost"], move["queue"]))
        lines.append(line if why is None else f"{line}: failed, {why}")
    lines += (f"{stay['queue']} in {stay['vhost']} stays: {stay['why']}" for stay in answer["stays"])
    if answer["dry_run"]:
        lines.append(f"{len(answer['moves'])} queues would move; strategy: {answer['strategy']}")
    else:
        lines.append(f"{answer['done']} of {len(answer['moves'])} queues moved; strategy: {answer['strategy']}")
    if is_cut_short(answer):
        lines.append(CUT_SHORT.format(len(answer["moves"])))
    return "\n".join(lines)


def rebalance_status(session: Session, given: Given) -> Output:
    session.banner("Status of rebalancing ...")
    status = session.ask("rebalance_status")
    of_all, last = status["cluster"], status["cluster"]["last"]
    lines = [
        f"trigger: {status['trigger']}"
        + (f", every {status['interval_ms'] / 1000:g} s" if status["trigger"] == "timer" else ""),
        f"strategy: {status['strategy']}",
        f"node that rebalances: {status['leader'] or 'none'}",
        f"runs: {of_all['runs']}",
        f"moves: {of_all['moves']}, in the last hour: {of_all['moves_of_the_last_hour']}",
    ]
    if last is not None:
        done = f"{last['moves'] - last['failed']} of {last['moves']} queues in {last['took_ms']} ms"
        lines.append(f"last run: {done}, by {last['node']} ({last['strategy']})")
    lines += (
        f"in progress: {one['queue']} in {one['vhost']}: {one['from']} → {one['to']}" for one in status["under_way"]
    )
    return Report(status, "\n".join(lines))


COMMANDS: Final = (
    Command(
        "rebalance", BALANCE,
        "[<all | classic | quorum | stream>] [--strategy <strategy>] [--vhost-pattern <pattern>] "
        "[--queue-pattern <pattern>] [--queues <pattern>] [--from <node>] [--to <node>] [--plan <file>] "
        "[--max-moves <number>] [--dry-run]",
        "Spreads the masters of queues over the nodes of the cluster",
        'leveretctl rebalance all --strategy least-messages --queues "^orders" --dry-run', rebalance, 0, 1,
        {
            "strategy": "strategy", "vhost-pattern": "pattern", "queue-pattern": "pattern", "queues": "pattern",
            "from": "node", "to": "node", "plan": "file", "max-moves": "number", "dry-run": None,
        },
        more=f"Strategies: {', '.join((*STRATEGIES, PLAN))}. Masters of mirrored queues move to synchronised mirrors; "
        "queues without mirrors move with all their messages, while they are in use. --to: moves all matching queues "
        "(of the node --from) there. --plan: a file written by leveret pipeline balance, or by a dry run with "
        "--formatter json.",
    ),
    Command(
        "rebalance_status", BALANCE, "", "Shows when masters are rebalanced, and what was moved",
        "leveretctl rebalance_status", rebalance_status,
    ),
)  # fmt: skip
