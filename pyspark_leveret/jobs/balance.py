"""`leveret pipeline balance`: plans which node should lead which queue, from journals and the brokers' figures.

The brokers tell where queues are now, which mirrors are in sync, and how many messages wait. The journals tell who used
a queue, and how much, in a window that ends with their last event. `leveret.metadata.rebalancing` makes the plan, the
same code as in the broker. This job moves nothing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from leveret.metadata import rebalancing
from leveret.metadata.rebalancing import THRESHOLD, Measure, NodeState, Plan, QueueState, Settings
from pyspark_leveret.connect import PLANNING_PATIENCE_S, explained, new_client
from pyspark_leveret.jobs import journal, pages, rollup
from pyspark_leveret.jobs.analysis import latency
from pyspark_leveret.jobs.support import job_status
from pyspark_leveret.jobs.support.common import access_of, add_schedule, say
from pyspark_leveret.jobs.support.hadoop_files import Files
from pyspark_leveret.options import Access, Options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from leveret.data.client import QueueInfo

DESCRIPTION: Final = """\
Plans how to balance the load of the nodes by moving the masters of queues. Mirrored queues move to mirrors in sync
only. Nothing is moved: the plan is a JSON file, which leveretctl rebalance --plan carries out.
"""

REPEATS: Final = True  # It has the option --every.

EXAMPLES: Final = """\
examples:
  leveret pipeline balance --by messages --plan plan.json
                                     balances the number of messages
  leveret pipeline balance --by connections --plan plan.json
                                     balances clients that publish to or consume from the queues (needs journals)
  leveret pipeline balance --by forecast --window 120 --ahead 60 --plan plan.json
                                     balances the expected load in an hour, from the last two hours (needs journals)
  leveret pipeline balance --by messages --threshold 0.25 --also-vhost staging
                                     only moves with a large effect; prints the plan instead of writing it
"""

STRATEGIES: Final = {
    "connections": "connections",
    "messages": "messages",
    "forecast": "messages a minute",
}
WINDOW_MIN: Final = 60
MOVES_MAX: Final = 100
AHEAD_MIN: Final = 30

Key = tuple[str, str, int]  # vhost, queue, id


@dataclass(frozen=True)
class Use:
    """The use of a queue within a window of minutes."""

    connections: int
    by_minute: Mapping[int, float]  # Messages published, delivered or acknowledged, by minute from 0 on.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_schedule(parser)
    parser.add_argument("--by", choices=tuple(STRATEGIES), required=True, help="what to balance")
    parser.add_argument("--plan", metavar="FILE", help="file for the plan (default: printed)")
    parser.add_argument("--page", metavar="FILE", help="HTML file that shows the plan")
    parser.add_argument("--threshold", metavar="PART", type=_part, default=THRESHOLD,
                        help="leave out moves with less effect than this fraction of the mean (0.1)")  # fmt: skip
    parser.add_argument("--max-moves", metavar="N", type=_above_zero, default=MOVES_MAX, help="at most N moves (100)")
    parser.add_argument("--window", metavar="MINUTES", type=_above_zero, default=WINDOW_MIN,
                        help="how much of the journals to use (60)")  # fmt: skip
    parser.add_argument("--ahead", metavar="MINUTES", type=_above_zero, default=AHEAD_MIN,
                        help="how far ahead the forecast is (30)")  # fmt: skip
    parser.add_argument(
        "--also-vhost", metavar="NAME", action="append", default=[], help="besides --vhost (may be repeated)"
    )
    parser.add_argument("--node", metavar="NAME", action="append", default=[],
                        help="a running node without queues (may be repeated)")  # fmt: skip
    parser.add_argument("--lake", metavar="PATH", help="read archived journals instead of those of the nodes")


def _above_zero(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def _part(text: str) -> float:
    try:
        part = float(text)
    except ValueError:
        part = -1.0
    if not 0 <= part <= 10:
        raise argparse.ArgumentTypeError(f"{text!r} is not a fraction like 0.1")
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
    for node, load, after in pages.loads(made):
        say(f"{node}: {load:,} {made.unit}" + (f", then {after:,}" if after != load else ""))
    summary = f"{len(made.moves)} of {len(queues)} queues would move"
    say(summary)
    figures_ = {"moves": len(made.moves), "queues": len(queues)}
    job_status.found(summary, figures_, report=parsed.page or parsed.plan or "")
    if parsed.page is not None:
        _write(spark, parsed.page, pages.of_plan(made, len(queues)))
        say(f"report: {parsed.page}")
    text = json.dumps(made.as_json(), indent=2, ensure_ascii=False) + "\n"
    if parsed.plan is None:
        print(text, end="")
        return 0
    _write(spark, parsed.plan, text)
    print(parsed.plan)
    return 0


def _write(spark: SparkSession, path: str, text: str) -> None:
    """Writes a file in place of the one before."""
    files = Files(spark, path)
    files.delete(path)
    files.create(path, text)


@dataclass(frozen=True)
class Figures:
    """A queue with the broker's figures of now."""

    vhost: str
    info: QueueInfo


def figures(access: Access, vhost: str) -> list[Figures]:
    """Returns all queues of a vhost that can be moved. Raises LeveretError."""
    with (
        explained(access, f"look at the queues of vhost '{vhost}'"),
        new_client(replace(access, vhost=vhost), PLANNING_PATIENCE_S) as client,
    ):
        infos = client.queues(pattern=".*")
    return [Figures(vhost, info) for info in infos if not info.is_down and not info.name.startswith(journal.PREFIX)]


def used(events: DataFrame, window_min: int) -> dict[Key, Use]:
    """Returns the use of each queue in the last minutes of the journals."""
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
    # "10.0.0.7:40000 -> 10.0.0.1:5672 (1)", followed by a consumer's tag. A publisher at another node is in its
    # journal. Consumers that took turns are named by `to`.
    takers = f.map_keys(f.from_json("detail", "to map<string, bigint>")["to"])
    names = f.when((kind == "delivered") & (who == ""), takers).otherwise(f.array(who))
    client = f.when(who.contains(" -> "), f.regexp_extract(who, r"^(\S+ -> \S+)", 1)).when(kind == "delivered", who)
    users = told.filter(kind.isin("published", "routed", "delivered")).withColumn("who", f.explode(names))
    clients = users.filter(who != "").groupBy("vhost", "queue", "id")
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
    """Makes a plan for these queues. Running nodes are those of members with an address, and `more_nodes`."""
    members = [member for one in queues for member in one.info.members]
    running = {member.node for member in members if member.url is not None} | set(more_nodes)
    nodes = [NodeState(name) for name in sorted(running)]
    nodes += [NodeState(name, running=False) for name in sorted({one.info.master for one in queues} - running)]
    weights = {}
    placed = []
    for number, one in enumerate(queues):
        info = one.info
        use = uses.get((one.vhost, info.name, info.id), Use(0, {}))
        if strategy == "messages":
            weights[number] = float(info.messages)
        elif strategy == "connections":
            weights[number] = float(use.connections)
        else:
            weights[number] = forecast(use.by_minute, window_min, ahead_min)
        is_mirrored = len(info.members) > 1
        in_sync = tuple(member.node for member in info.members if member.in_sync) if is_mirrored else None
        stays = info.type == "stream" and not is_mirrored  # A stream stays where its members are.
        placed.append(
            QueueState(number, one.vhost, info.name, info.master, info.messages, in_sync=in_sync, pinned=stays)
        )
    settings = Settings(strategy, threshold, moves_max)
    return rebalancing.balance(nodes, placed, settings, Measure(STRATEGIES[strategy], weights))


def forecast(loads: Mapping[int, float], slots: int, ahead: int) -> float:
    """Returns the load `ahead` slots after the last one, by the straight line that fits `slots` of them best. `loads`
    has the slots with a load, counted from 0; the others had none. The result is never negative, and at most twice the
    highest load."""
    if slots < 1 or not loads:
        return 0.0
    mean_at = (slots - 1) / 2
    mean = sum(loads.values()) / slots
    spread = sum((at - mean_at) ** 2 for at in range(slots))
    slope = sum((at - mean_at) * load for at, load in loads.items()) / spread if spread else 0.0
    return min(max(mean + slope * (slots - 1 + ahead - mean_at), 0.0), 2 * max(loads.values()))
