"""`leveret pipeline balance`: a plan which node should lead which queue, from journals and the brokers' figures.

Where queues are, which mirrors are in sync and how many messages they have is asked of the brokers, as of now. Who uses
a queue and how much, the journals tell: of a window that ends with their last event. How a plan is made of that is told
in `placing`. Nothing is moved here.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark_leveret.connect import PLANNING_PATIENCE_S, explained, new_client
from pyspark_leveret.jobs import journal, latency, rollup, telling
from pyspark_leveret.jobs.common import access_of, say
from pyspark_leveret.jobs.files import Files
from pyspark_leveret.jobs.placing import MOVES_MAX, THRESHOLD, Placed, Plan, forecast, plan
from pyspark_leveret.options import Access, Options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from leveret.data.client import QueueInfo

DESCRIPTION: Final = """\
Makes a plan that evens out what the nodes of a cluster have to do, by moving the masters of queues. Mirrored queues
move to mirrors in sync only. Nothing is moved: the plan is a JSON file, for people to read and for 'rebalance'.
"""

EXAMPLES: Final = """\
examples:
  leveret pipeline balance --by messages --plan plan.json
                                     every node should have as many messages waiting
  leveret pipeline balance --by connections --plan plan.json
                                     … as many clients that publish to its queues, or consume from them (journals)
  leveret pipeline balance --by forecast --window 120 --ahead 60 --plan plan.json
                                     … as much to do in an hour, if the last two hours go on like this (journals)
  leveret pipeline balance --by messages --threshold 0.25 --also-vhost staging
                                     only moves that matter much; printed, and not written
"""

STRATEGIES: Final = {
    "connections": "connections",
    "messages": "messages",
    "forecast": "messages a minute",
}
WINDOW_MIN: Final = 60
AHEAD_MIN: Final = 30

Key = tuple[str, str, int]  # vhost, queue, id


@dataclass(frozen=True)
class Use:
    """Of a queue, in a window of so many minutes."""

    connections: int
    by_minute: Mapping[int, float]  # From 0 on: messages that were published, delivered or acknowledged.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--by", choices=tuple(STRATEGIES), required=True, help="what should be even")
    parser.add_argument("--plan", metavar="FILE", help="where the plan is written to; without it, it is printed")
    parser.add_argument("--threshold", metavar="PART", type=_part, default=THRESHOLD,
                        help="no move that brings nodes closer by less than such a part of the mean (0.1)")  # fmt: skip
    parser.add_argument("--max-moves", metavar="N", type=_above_zero, default=MOVES_MAX, help="at most so many (100)")
    parser.add_argument("--window", metavar="MINUTES", type=_above_zero, default=WINDOW_MIN,
                        help="how much of the journals counts (60)")  # fmt: skip
    parser.add_argument("--ahead", metavar="MINUTES", type=_above_zero, default=AHEAD_MIN,
                        help="for when the forecast is made (30)")  # fmt: skip
    parser.add_argument(
        "--also-vhost", metavar="NAME", action="append", default=[], help="besides --vhost; several can be given"
    )
    parser.add_argument("--node", metavar="NAME", action="append", default=[],
                        help="a node that runs and has no queue yet; several can be given")  # fmt: skip
    parser.add_argument("--lake", metavar="PATH", help="journals that were archived, instead of those of the nodes")


def _above_zero(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return int(text)


def _part(text: str) -> float:
    try:
        part = float(text)
    except ValueError:
        part = -1.0
    if not 0 <= part <= 10:
        raise argparse.ArgumentTypeError(f"{text!r} is no part like 0.1")
    return part


def run(spark: SparkSession, parsed: argparse.Namespace) -> int:
    options = access_of(parsed)
    access = Options({**options, "subscribe": "-"}).source(streaming=False).access
    queues = [info for vhost in dict.fromkeys([access.vhost, *parsed.also_vhost]) for info in figures(access, vhost)]
    uses: dict[Key, Use] = {}
    if parsed.by != "messages":
        archived = parsed.lake is not None
        read = {name: value for name, value in options.items() if name != "vhost"}  # Journals are in "/".
        events = rollup.archived(spark, parsed.lake) if archived else journal.read(spark, read)
        uses = used(events, parsed.window)
        if not uses:
            say("leveret pipeline balance: no journal tells of a queue: is there a policy with 'journal'?")
            return 69
    made = balance(
        parsed.by, queues, uses, parsed.node, parsed.window, parsed.ahead, parsed.threshold, parsed.max_moves
    )
    for move in made.moves:
        say(f"{move.queue} in {move.vhost}: {move.source} → {move.target} ({move.why})")
    summary = f"{len(made.moves)} of {len(queues)} queues would move"
    say(summary)
    telling.found(summary, {"moves": len(made.moves), "queues": len(queues)}, report=parsed.plan or "")
    text = json.dumps(made.as_json(), indent=2, ensure_ascii=False) + "\n"
    if parsed.plan is None:
        print(text, end="")
        return 0
    files = Files(spark, parsed.plan)
    files.delete(parsed.plan)
    files.create(parsed.plan, text)
    print(parsed.plan)
    return 0


@dataclass(frozen=True)
class Figures:
    """A queue, as its broker tells of it now."""

    vhost: str
    info: QueueInfo


def figures(access: Access, vhost: str) -> list[Figures]:
    """All queues of a vhost that can be moved. Raises LeveretError."""
    with (
        explained(access, f"look at the queues of vhost '{vhost}'"),
        new_client(replace(access, vhost=vhost), PLANNING_PATIENCE_S) as client,
    ):
        infos = client.queues(pattern=".*")
    return [Figures(vhost, info) for info in infos if not info.name.startswith("leveret.journal.")]


def used(events: DataFrame, window_min: int) -> dict[Key, Use]:
    """By queue: what the journals tell of the last so many minutes."""
    from pyspark.sql import functions as f

    minute = f.floor(f.unix_seconds("time") / 60)
    kind, who = f.col("kind"), f.col("who")
    [end] = events.agg(f.max(minute)).collect()
    if end[0] is None:
        return {}
    begin = end[0] - window_min + 1
    told = events.filter((minute >= begin) & (f.col("queue") != "")).filter(f"who not like '{latency.MOVING}'")
    work = told.filter(kind.isin("published", "delivered", "acked")).groupBy(
        "vhost", "queue", "id", (minute - begin).alias("at")
    )
    loads: dict[Key, dict[int, float]] = {}
    for row in work.agg(f.sum("count").alias("count")).toLocalIterator():
        loads.setdefault((row.vhost, row.queue, row.id), {})[row.at] = float(row["count"])
    # "10.0.0.7:40000 -> 10.0.0.1:5672 (1)", with a consumer's tag behind. Publishers at other nodes are told of there.
    client = f.when(who.contains(" -> "), f.regexp_extract(who, r"^(\S+ -> \S+)", 1)).when(kind == "delivered", who)
    clients = told.filter(kind.isin("published", "routed", "delivered") & (who != "")).groupBy("vhost", "queue", "id")
    counts = {
        (row.vhost, row.queue, row.id): row.clients
        for row in clients.agg(f.countDistinct(client).alias("clients")).toLocalIterator()
    }
    return {key: Use(counts.get(key, 0), loads.get(key, {})) for key in {*loads, *counts}}


def balance(
    strategy: str,
    queues: Sequence[Figures],
    uses: Mapping[Key, Use],
    more_nodes: Sequence[str] = (),
    window_min: int = WINDOW_MIN,
    ahead_min: int = AHEAD_MIN,
    threshold: float = THRESHOLD,
    moves_max: int = MOVES_MAX,
) -> Plan:
    """A plan for these queues. Nodes that run are those that a queue knows the address of, and `more_nodes`."""
    members = [member for one in queues for member in one.info.members]
    nodes = {member.node for member in members if member.url is not None} | set(more_nodes)
    placed = []
    for one in queues:
        info = one.info
        use = uses.get((one.vhost, info.name, info.id), Use(0, {}))
        if strategy == "messages":
            weight = float(info.messages)
        elif strategy == "connections":
            weight = float(use.connections)
        else:
            weight = forecast(use.by_minute, window_min, ahead_min)
        is_mirrored = len(info.members) > 1
        targets = [member.node for member in info.members if member.in_sync] if is_mirrored else sorted(nodes)
        if info.type == "stream" and not is_mirrored:
            targets = []  # A stream stays where its members are.
        carried = 0 if is_mirrored else info.messages
        placed.append(Placed(one.vhost, info.name, info.master, tuple(targets), weight, carried))
    return plan(strategy, STRATEGIES[strategy], placed, nodes, threshold, moves_max)
