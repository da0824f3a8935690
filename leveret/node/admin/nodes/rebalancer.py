"""Rebalances queues: which node does it, when, and how a plan is carried out.

**Where.** Only the leader of the cluster's consensus rebalances; another node that is asked passes the request on. For
a moment two nodes can think that they lead. The one that is wrong has no majority, and a move consists of commands that
a majority has to commit; so it moves nothing, and it stops when it notices, before each move.

**When.** The setting `cluster_rebalance` says when (see `leveret.node.config.rebalance_settings`). A node that begins
to lead waits until the others have settled, for after the loss of a node there is enough to do, then looks once; with
`timer`, again at each interval.

**How.** All nodes are asked for their figures; the rules of rebalancing in `leveret.metadata` make a plan of them; its
moves are carried out a few at a time. A mirrored queue is handed over to a mirror in sync. For a queue without mirrors
the target is recorded in the metadata, and its master does the rest (`leveret.broker.mirrors.member_changes`). So if
the leader dies meanwhile, its moves are finished without it, and the next leader plans with what it finds.

**Memory.** A global parameter, written after every few moves, has the moves of the last hour. The next leader does not
move those queues again, and counts them for the hourly limit. A node's own figures (`done`, `failed`) count the moves
that it has carried out itself.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from leveret.base.exit_codes import UNAVAILABLE, USAGE
from leveret.broker.queue.local_queue import LocalQueue
from leveret.metadata import rebalancing as r
from leveret.metadata.model.commands import ClearGlobalParameter, SetGlobalParameter
from leveret.metadata.model.hidden_queues import is_hidden_queue, is_journal
from leveret.metadata.model.maintenance_mark import state_of
from leveret.metadata.rules.ha_policy import is_quorum, is_stream
from leveret.metadata.rules.placement import LABELS, REBALANCE, labels_of, moving_to, own_labels
from leveret.node.admin.common.command import NoAnswer, Refused
from leveret.node.admin.queues.mirrors import move_queue_master
from leveret.node.cluster.consensus import AdminError
from leveret.node.system.time_slices import TimeSlices

if TYPE_CHECKING:
    from leveret.base.json_values import Json
    from leveret.metadata.model.records import QueueSpec
    from leveret.node.admin.dispatch import Control

logger = logging.getLogger("leveret.cluster")

HOUR_MS: Final = 3_600_000
SETTLE_S: Final = 10.0
RETRY_S: Final = 1.0
YEAR_S: Final = 3e7
REMEMBERED_MAX: Final = 2_000  # Moves that are remembered, and the greatest hourly limit.
WRITE_S: Final = 1.0  # Time between two updates of the remembered moves, each of which is a command for all nodes.
HERE_MAX: Final = 2_000  # Up to so many queues a plan is made in the event loop, otherwise in a thread.
PLAN_BYTES_MAX: Final = 16 << 20
BY_ITSELF: Final = (r.TIMER, r.RUN)
KINDS: Final = ("all", "classic", "quorum", "stream")


class Wanted(NamedTuple):
    """A request to rebalance. Fields that are None are as configured."""

    strategy: str | None = None
    dry_run: bool = False
    kind: str = "all"
    vhosts: str = ".*"  # Patterns of names.
    queues: str = ".*"
    source: str | None = None  # Only queues of this node are moved.
    target: str | None = None  # All of the chosen queues are moved to this node.
    plan: Any = None  # A plan from a file.
    moves_max: int | None = None
    by_itself: bool = False

    @property
    def most(self) -> int:
        """The greatest number of moves in one run."""
        return r.MOVES_MAX if self.moves_max is None else self.moves_max

    @property
    def is_appointed(self) -> bool:
        """True if the request names queues or nodes."""
        return self.plan is not None or self.queues != ".*" or (self.source, self.target) != (None, None)


class Rebalancer:
    """Rebalances queues while this node leads. It lasts as long as the process, through stops of the app."""

    def __init__(self, control: Control) -> None:
        self.control = control
        self.busy = False
        self.runs = self.done = self.failed = 0
        self.took_ms = 0  # The duration of the last run.
        self.asked = 0  # Runs that this node has asked the leader for.
        self.under_way: dict[int, r.Move] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def schedule(self) -> r.Schedule:
        return self.control.server.settings.rebalance

    # -- Starting and stopping -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Called when the node begins to serve clients."""
        labels = own_labels(self.control.node.metadata, self.control.name)
        if self.schedule.trigger not in BY_ITSELF and labels == self.control.server.settings.node_labels:
            return  # There is nothing to do without a request.
        self._task = asyncio.get_running_loop().create_task(self._live())

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _live(self) -> None:
        await self._tell_labels()
        cluster = self.control.node.cluster
        trigger = self.schedule.trigger
        while trigger in BY_ITSELF and await cluster.until(self.leads):
            term, pause_s = cluster.leadership, SETTLE_S
            while not await cluster.until(lambda: cluster.leadership != term, pause_s) and not cluster.stopped:  # noqa: B023
                await self.run_by_itself()
                pause_s = self.schedule.interval_ms / 1000 if trigger == r.TIMER else YEAR_S

    async def _tell_labels(self) -> None:
        """Records this node's labels in the metadata, where others find them also while this node is down."""
        name, labels = self.control.name, dict(self.control.server.settings.node_labels)
        while labels != own_labels(self.control.node.metadata, name):
            try:
                if labels:
                    await self.control.change(SetGlobalParameter(LABELS + name, {**labels}))
                else:
                    await self.control.change(ClearGlobalParameter(LABELS + name))
            except (Refused, AdminError) as error:
                logger.info("labels of this node are not known to the others yet: %s", error)
                await asyncio.sleep(RETRY_S)

    def leads(self) -> bool:
        return self.control.node.cluster.leader == self.control.name

    async def run_by_itself(self) -> None:
        try:
            await self.run(Wanted(by_itself=True))
        except (Refused, AdminError) as error:
            logger.warning("rebalancing: %s", error)
        except Exception:  # The next run has other figures and may succeed; the log tells of this failure.
            logger.exception("rebalancing failed, and is tried again when it is due")

    # -- A run ---------------------------------------------------------------------------------------------------

    async def run(self, wanted: Wanted) -> dict[str, Any]:
        """Makes a plan, and unless it is a dry run, carries it out. Raises Refused."""
        if not wanted.dry_run and self.busy:
            raise Refused(UNAVAILABLE, "queues are being rebalanced already; see: leveretctl rebalance_status")
        if self.schedule.trigger == r.APPOINT and not wanted.is_appointed:
            text = "cluster_rebalance is appoint: name queues or nodes (--queues, --from, --to, --plan)"
            raise Refused(UNAVAILABLE, text)
        if wanted.dry_run:
            plan = await self.plan(wanted)
            return {**plan.as_json(), "dry_run": True, "done": 0, "failed": [], "moves_max": wanted.most}
        self.busy = True
        try:
            return await self._carry_out(wanted)
        finally:
            self.busy = False

    async def _carry_out(self, wanted: Wanted) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        plan = await self.plan(wanted)
        failed: list[dict[str, Json]] = []
        moves, at_once = plan.moves, self.schedule.at_once
        untold: list[r.Move] = []
        told_s = began_s
        for begin in range(0, len(moves), at_once):
            some = moves[begin : begin + at_once]
            self.control.progress = _so_far(begin - len(failed), len(moves), len(failed))
            problems = await asyncio.gather(*map(self._move, some))
            for move, problem in zip(some, problems, strict=True):
                if problem is not None:
                    failed.append({"vhost": move.vhost, "queue": move.queue, "to": move.target, "why": problem})
            moved = [move for move, problem in zip(some, problems, strict=True) if problem is None]
            self.done, self.failed = self.done + len(moved), self.failed + len(some) - len(moved)
            untold += moved
            self.control.progress = _so_far(begin + len(some) - len(failed), len(moves), len(failed))
            if not self.leads():
                raise Refused(UNAVAILABLE, "this node does not lead the cluster any more; the next leader will look")
            if loop.time() - told_s >= WRITE_S:
                await self._remember(untold, None)
                untold, told_s = [], loop.time()
        self.runs += 1
        self.took_ms = round((loop.time() - began_s) * 1000)
        if moves or not wanted.by_itself:
            last: dict[str, Json] = {"strategy": plan.strategy, "moves": len(moves), "failed": len(failed)}
            last["took_ms"] = self.took_ms
            await self._remember(untold, last)
            logger.info("rebalancing (%s): %d of %d queues moved", plan.strategy, len(moves) - len(failed), len(moves))
        done = {"dry_run": False, "done": len(moves) - len(failed), "failed": failed, "moves_max": wanted.most}
        return {**plan.as_json(), **done}

    async def _move(self, move: r.Move) -> str | None:
        """Carries out a move. Returns what went wrong, None if nothing did."""
        spec = self.control.node.metadata.queues.get((move.vhost, move.queue))
        if spec is None or spec.id != move.id or not self.leads():
            return "the queue is gone" if self.leads() else "this node does not lead the cluster any more"
        self.under_way[move.id] = move
        try:
            await move_queue_master(self.control, move.vhost, move.queue, move.target)
        except (Refused, AdminError) as error:
            logger.warning("rebalancing: queue '%s' in vhost '%s' stays: %s", move.queue, move.vhost, error)
            return str(error)
        finally:
            del self.under_way[move.id]
        return None

    # -- Remembered moves ----------------------------------------------------------------------------------------

    def remembered(self) -> dict[str, Any]:
        found = self.control.node.metadata.global_parameters.get(REBALANCE)
        if not isinstance(found, dict) or set(found) != {"runs", "moves", "last", "moved"}:
            return {}  # There is no such parameter yet, or somebody has set it to something else.
        return dict(found)

    def moved_since(self, begin_ms: int) -> dict[int, int]:
        """Returns when queues were moved last, by the queue's number."""
        moved = self.remembered().get("moved", {})
        return {int(number): at_ms for number, at_ms in moved.items() if at_ms >= begin_ms}

    async def _remember(self, moves: list[r.Move], last: Mapping[str, Json] | None) -> None:
        now_ms, told = self.control.node.broker.wall_ms, self.remembered()
        begin_ms = now_ms - max(HOUR_MS, self.schedule.rest_ms)
        moved = self.moved_since(begin_ms) | dict.fromkeys((move.id for move in moves), now_ms)
        pairs = list(moved.items())[-REMEMBERED_MAX:]
        value: dict[str, Json] = {
            "runs": told.get("runs", 0) + (last is not None),
            "moves": told.get("moves", 0) + len(moves),
            "last": dict(last) | {"at_ms": now_ms, "node": self.control.name} if last else told.get("last"),
            "moved": {str(number): at_ms for number, at_ms in pairs},
        }
        if moves or last is not None:
            await self.control.change(SetGlobalParameter(REBALANCE, value))

    def status(self) -> dict[str, Any]:
        """Returns the status, for people and metrics: `runs`, `done` and `failed` are this node's own."""
        schedule, told = self.schedule, self.remembered()
        now_ms = self.control.node.broker.wall_ms
        return {
            "trigger": schedule.trigger,
            "strategy": schedule.strategy,
            "interval_ms": schedule.interval_ms,
            "leader": self.control.node.cluster.leader,
            "busy": self.busy,
            "under_way": [
                {"vhost": one.vhost, "queue": one.queue, "from": one.source, "to": one.target}
                for one in self.under_way.values()
            ],
            "runs": self.runs,
            "done": self.done,
            "failed": self.failed,
            "took_ms": self.took_ms,
            "cluster": {
                "runs": told.get("runs", 0),
                "moves": told.get("moves", 0),
                "moves_of_the_last_hour": len(self.moved_since(now_ms - HOUR_MS)),
                "last": told.get("last"),
            },
        }

    # -- Plans ---------------------------------------------------------------------------------------------------

    async def plan(self, wanted: Wanted) -> r.Plan:
        """Makes a plan. Raises Refused."""
        schedule = self.schedule
        strategy = wanted.strategy or schedule.strategy
        document = wanted.plan
        if document is None and strategy == r.PLAN:
            document = await asyncio.to_thread(_read, schedule.plan)
        moves_max = wanted.most
        if wanted.by_itself and schedule.per_hour is not None:
            since_ms = self.control.node.broker.wall_ms - HOUR_MS
            moves_max = min(moves_max, max(0, schedule.per_hour - len(self.moved_since(since_ms))))
        nodes, queues = await self._figures(wanted)
        if document is not None:
            try:
                return r.from_file(document, nodes, queues, moves_max)
            except r.BadPlan as error:
                raise Refused(USAGE, f"bad plan: {error}") from None
        if wanted.target is not None:
            return self._appointed(wanted, wanted.target, nodes, queues, moves_max)
        seed = self.remembered().get("runs", 0)
        settings = r.Settings(strategy, schedule.threshold, moves_max, seed)
        if len(queues) <= HERE_MAX:
            return r.balance(nodes, queues, settings)
        return await asyncio.to_thread(r.balance, nodes, queues, settings)

    def _appointed(
        self, wanted: Wanted, target: str, nodes: list[r.NodeState], queues: list[r.QueueState], moves_max: int
    ) -> r.Plan:
        names = {node.name for node in nodes}
        for name in (target, wanted.source):
            if name is not None and name not in names:
                raise Refused(UNAVAILABLE, f"The node selected is not in the cluster: {name}")
        meant = [one for one in queues if not one.pinned and wanted.source in (None, one.master)]
        chosen = {(one.vhost, one.name): (wanted.source, target) for one in meant if one.master != target}
        return r.appointed(r.APPOINT, chosen, nodes, queues, moves_max)

    async def _figures(self, wanted: Wanted) -> tuple[list[r.NodeState], list[r.QueueState]]:
        members = self.control.node.cluster.members()
        answers = await asyncio.gather(*(self._ask(one.name) for one in members if one.running))
        told = {answer["node"]: answer for answer in answers if answer is not None}
        nodes, counts = [], {}
        for one in members:
            answer = told.get(one.name)
            labels = labels_of(self.control.node.metadata, one.name)
            if answer is None:  # A node that does not answer must not get more queues.
                nodes.append(r.NodeState(one.name, running=False, labels=labels))
                continue
            nodes.append(
                r.NodeState(
                    one.name,
                    draining=answer["draining"],
                    capacity=answer["capacity"],
                    connections=answer["connections"],
                    labels=labels,
                )
            )
            counts.update({number: (messages, consumers) for number, messages, consumers in answer["queues"]})
        return nodes, await self._states(wanted, counts)

    async def _ask(self, name: str) -> dict[str, Any] | None:
        try:
            answer: dict[str, Any] = await self.control.at(name, "local_balance", {})
            return answer
        except (NoAnswer, Refused) as error:
            logger.info("rebalancing without node %s: %s", name, error)
            return None

    async def _states(self, wanted: Wanted, counts: Mapping[int, tuple[int, int]]) -> list[r.QueueState]:
        vhosts, queues = _pattern(wanted.vhosts), _pattern(wanted.queues)
        begin_ms = self.control.node.broker.wall_ms - self.schedule.rest_ms
        recent = self.moved_since(begin_ms) if wanted.by_itself else {}
        found, slices = [], TimeSlices()
        for spec in list(self.control.node.metadata.queues.values()):
            if slices.is_over():
                await slices.rest()
            if spec.exclusive or is_hidden_queue(spec.name) or is_journal(spec.name):
                continue
            state = self._state(spec, *counts.get(spec.id, (0, 0)))
            meant = vhosts.search(spec.vhost) and queues.search(spec.name) and _is_kind(spec, wanted.kind)
            if not meant or (wanted.target is None and wanted.source not in (None, spec.node)):
                state = replace(state, pinned=True)  # It is part of its node's load, and is not moved.
            found.append(replace(state, recent=True) if spec.id in recent else state)
        return found

    def _state(self, spec: QueueSpec, messages: int, consumers: int) -> r.QueueState:
        node = self.control.node
        member_changes = node.broker.member_changes
        assert member_changes is not None
        rules = member_changes.rules_of(spec)
        mode, params = rules.placement.get("ha-mode"), rules.placement.get("ha-params")
        view = spec.view
        alone = view is None or view.ring == (spec.node,)
        in_sync: tuple[str, ...] | None = (spec.node,) if view is None else tuple(name for name, _ in view.in_sync)
        if alone and (mode is None or (mode, params) == ("exactly", 1)):
            in_sync = None
        return r.QueueState(
            spec.id,
            spec.vhost,
            spec.name,
            spec.node,
            messages,
            consumers,
            in_sync,
            frozenset(map(str, params)) if mode == "nodes" and isinstance(params, list) else None,
            rules.label,
            rules.pinned or moving_to(node.metadata, spec) is not None,
        )


def _so_far(done: int, total: int, failed: int) -> str:
    return f"{done} of {total} queues moved" + (f", {failed} stay" if failed else "")


def local_balance(control: Control) -> dict[str, Any]:
    """Returns the figures that only this node knows of itself and its queues."""
    broker = control.node.broker
    queues = [
        [queue.spec.id, queue.ready_count + queue.unacked_count, len(queue.consumers)]
        for queue in broker.queues_by_id.values()
        if isinstance(queue, LocalQueue)
    ]
    return {
        "node": control.name,
        "connections": len(broker.connections),
        "capacity": control.server.settings.node_capacity,
        "draining": state_of(control.node.metadata, control.name) is not None,
        "queues": queues,
    }


def _is_kind(spec: QueueSpec, kind: str) -> bool:
    found = "quorum" if is_quorum(spec.arguments) else "stream" if is_stream(spec.arguments) else "classic"
    return kind in ("all", found)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise Refused(USAGE, f"'{text}' is not a regular expression: {error}") from None


def _read(path: str) -> Any:
    """Raises Refused."""
    if not path:
        text = "there is no plan: name a file with --plan, or with cluster_rebalance.plan in the configuration"
        raise Refused(UNAVAILABLE, text)
    try:
        with open(path, "rb") as file:
            data = file.read(PLAN_BYTES_MAX + 1)
        if len(data) > PLAN_BYTES_MAX:
            raise Refused(UNAVAILABLE, f"the plan in {path} has more than {PLAN_BYTES_MAX} bytes")
        return json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        raise Refused(UNAVAILABLE, f"cannot read the plan in {path}: {error}") from None
