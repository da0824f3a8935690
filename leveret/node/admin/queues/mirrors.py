"""Control commands about mirrors: synchronise them, add and remove them, have another copy lead, see how they are.

Where each is done:

- *Synchronising* is done by the mirrors that lack messages, each for itself while the queue is used; so all members
  are told, and the master too, which says of the queue that it is syncing.
- *A mirror by hand* (`add_queue_mirror_link`) is a parameter in the metadata, kept beside the policies; the queue's
  master works towards both (`cluster.placement.extra_members`). It names the queue by its id, so it does not come back
  with another queue of the same name; what is left of deleted ones is cleared away with the next change.
- *Handing over* to a synchronised copy is the master's, and loses nothing. *Promotion by force* is the copy's that is
  promoted, for when there is no master and no synchronised copy, and loses what that copy lacks. So it says first
  what that is, and is done only on the second, confirmed request.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from leveret.base.exit_codes import UNAVAILABLE
from leveret.broker.mirrors import status
from leveret.metadata.model.commands import ClearParameter, SetParameter
from leveret.metadata.model.hidden_queues import is_journal
from leveret.metadata.model.maintenance_mark import state_of
from leveret.metadata.rules.placement import LINKS, MOVES, extra_members, moving_to
from leveret.node.admin.common import listing_columns as columns_
from leveret.node.admin.common.command import FLAG, NUMBER, NUMBERS, OBJECT, RUNNING, TEXT, TEXTS, Commands, Refused
from leveret.node.admin.queues.lists import check_columns, numbered_page, page, running_nodes
from leveret.node.admin.queues.queues import ask_homes, at_home, copies, following_cursor, position, queue_spec

if TYPE_CHECKING:
    from leveret.base.json_values import Json
    from leveret.broker.mirrors.manager import Mirror
    from leveret.metadata.model.records import QueueSpec
    from leveret.metadata.model.view import View
    from leveret.node.admin.dispatch import Control

COMMANDS = Commands()

PATIENCE_S: Final = 10.0
POLL_S: Final = 0.02
STALL_S: Final = 60.0  # Time without progress after which a move is given up.


def _spec(control: Control, vhost: str, name: str) -> QueueSpec:
    return queue_spec(control, vhost, name, UNAVAILABLE, "not_found")


def _mirrored(control: Control, vhost: str, name: str) -> tuple[QueueSpec, View]:
    spec = _spec(control, vhost, name)
    if spec.view is None:
        raise Refused(UNAVAILABLE, "not_mirrored")
    return spec, spec.view


def _called(spec: QueueSpec) -> str:
    return f"queue '{spec.name}' in vhost '{spec.vhost}'"


def _copy_here(control: Control, number: int) -> Mirror:
    mirror = control.node.broker.mirrors.mirrors.get(number)
    if mirror is None:
        raise Refused(UNAVAILABLE, f"node {control.name} has no copy of that queue any more")
    return mirror


def _check_running(control: Control, name: str) -> None:
    member = control.member(name)
    if member is None:
        raise Refused(UNAVAILABLE, f"The node selected is not in the cluster: {name}")
    if not member.running:
        raise Refused(UNAVAILABLE, f"node {name} is not running")


# -- Synchronising -------------------------------------------------------------------------------------------------


async def _order(control: Control, spec: QueueSpec, wanted: bool) -> bool:
    """Tells a queue's master to begin or to stop synchronising, and returns whether it was synchronising before. The
    master tells its mirrors, also those that are added later."""
    answer = await at_home(control, spec, "local_order_sync", {"queue": spec.id, "wanted": wanted})
    return bool(answer["syncing"])


@COMMANDS.add(RUNNING, queue=NUMBER, wanted=FLAG)
async def local_order_sync(control: Control, queue: int, wanted: bool) -> Any:
    mirror = _copy_here(control, queue)
    if mirror.member.master is None:
        raise Refused(UNAVAILABLE, f"node {control.name} does not lead that queue any more; try again")
    syncing = status.is_syncing(mirror)
    control.node.broker.mirrors.order_sync(mirror, wanted)
    control.node.schedule()
    return {"syncing": syncing}


@COMMANDS.add(RUNNING, vhost=TEXT, name=TEXT)
async def sync_queue(control: Control, vhost: str, name: str) -> None:
    """Begins to synchronise a queue's mirrors. The queue can be used meanwhile."""
    spec, _ = _mirrored(control, vhost, name)
    member_changes = control.node.broker.member_changes
    refused = None if member_changes is None else member_changes.rules_of(spec).sync_refused
    if refused is not None:
        raise Refused(UNAVAILABLE, f"the mirrors of {_called(spec)} cannot be synchronised: {refused}")
    await _order(control, spec, True)


@COMMANDS.add(RUNNING, vhost=TEXT, name=TEXT)
async def cancel_sync_queue(control: Control, vhost: str, name: str) -> Any:
    spec = _spec(control, vhost, name)
    return {"syncing": spec.view is not None and await _order(control, spec, False)}


# -- Mirrors by hand -----------------------------------------------------------------------------------------------


def _meant(control: Control, vhost: str, source: str) -> QueueSpec:
    """Returns a queue by its name, or by its id: the number, or what `list_queues pid` shows."""
    metadata = control.node.metadata
    by_id = re.fullmatch(rf"(?:<.+\.{status.QUEUE_PID}\.)?(\d+)(?:\.0>)?", source)
    if (vhost, source) not in metadata.queues and by_id is not None:
        for spec in metadata.queues.values():
            if spec.id == int(by_id[1]) and spec.vhost == vhost:
                return spec
    return _spec(control, vhost, source)


async def _store_links(control: Control, spec: QueueSpec, nodes: list[str]) -> None:
    if nodes:
        value: dict[str, Json] = {"queue": spec.id, "nodes": [*nodes]}
        await control.change(SetParameter(LINKS, spec.vhost, spec.name, value))
    elif (LINKS, spec.vhost, spec.name) in control.node.metadata.parameters:
        await control.change(ClearParameter(LINKS, spec.vhost, spec.name))


@COMMANDS.add(RUNNING, vhost=TEXT, source=TEXT, node=TEXT)
async def add_queue_mirror_link(control: Control, vhost: str, source: str, node: str) -> None:
    spec = _meant(control, vhost, source)
    if control.member(node) is None:
        raise Refused(UNAVAILABLE, f"The node selected is not in the cluster: {node}")
    if spec.exclusive:
        raise Refused(UNAVAILABLE, f"{_called(spec)} is exclusive: it goes with its connection, and is never mirrored")
    if spec.node == node:
        raise Refused(UNAVAILABLE, f"node {node} is where the master of {_called(spec)} is")
    nodes = extra_members(control.node.metadata, spec.vhost, spec.name)
    if node not in nodes:
        await _store_links(control, spec, [*nodes, node])


@COMMANDS.add(RUNNING, vhost=TEXT, source=TEXT, node=TEXT)
async def remove_queue_mirror_link(control: Control, vhost: str, source: str, node: str) -> None:
    spec = _meant(control, vhost, source)
    nodes = extra_members(control.node.metadata, spec.vhost, spec.name)
    if node not in nodes:
        policy = control.policies.of_queue(spec.vhost, spec.name, spec.arguments).policy
        is_there = spec.view is not None and node in spec.view.ring
        because = f"; its mirror there comes from policy '{policy}'" if is_there and policy else ""
        raise Refused(UNAVAILABLE, f"{_called(spec)} has no mirror link to node {node}{because}")
    await _store_links(control, spec, [one for one in nodes if one != node])


# -- Another master ------------------------------------------------------------------------------------------------


async def _until_led_by(control: Control, spec: QueueSpec, node: str, patience_s: float = PATIENCE_S) -> bool:
    clock = asyncio.get_running_loop().time
    deadline = clock() + patience_s
    while clock() < deadline:
        now = control.node.metadata.queues.get((spec.vhost, spec.name))
        if now is None or now.id != spec.id:
            raise Refused(UNAVAILABLE, f"{_called(spec)} was deleted meanwhile")
        if now.node == node:
            return True
        await asyncio.sleep(POLL_S)
    return False


@COMMANDS.add(RUNNING, vhost=TEXT, name=TEXT, node=TEXT)
async def move_queue_master(control: Control, vhost: str, name: str, node: str) -> None:
    """Moves a queue's master to another node without loss: a mirror takes over when it has everything, or a queue
    without mirrors is moved."""
    spec = _spec(control, vhost, name)
    _check_running(control, node)
    if spec.exclusive:
        raise Refused(UNAVAILABLE, f"{_called(spec)} is exclusive: it stays with its connection")
    if is_journal(name):
        raise Refused(UNAVAILABLE, f"{_called(spec)} is the journal of node {spec.node}, and stays there")
    if spec.node == node:
        await _stay(control, spec)
        return
    if state_of(control.node.metadata, node) is not None:
        raise Refused(UNAVAILABLE, f"node {node} is in maintenance; revive it first: leveretctl -n {node} revive")
    if spec.view is None or (spec.view.ring == (spec.node,) and _may_be_at(control, spec, node)):
        await move_alone(control, spec, node)
        return
    if node not in spec.view.ring:
        text = f"node {node} has no mirror of {_called(spec)}; have one made first: add_queue_mirror_link {name} {node}"
        raise Refused(UNAVAILABLE, text)
    if spec.view.disk_of(node) is None:
        raise Refused(UNAVAILABLE, f"the mirror of {_called(spec)} on node {node} is not synchronised")
    for _ in range(3):  # The master gives up a hand-over if some disk is slow at the wrong moment.
        await at_home(control, spec, "local_hand_over", {"queue": spec.id, "node": node})
        if await _until_led_by(control, spec, node, PATIENCE_S / 3):
            return
    raise Refused(UNAVAILABLE, f"the mirrors of {_called(spec)} do not keep up; its master stays at {spec.node}")


def _may_be_at(control: Control, spec: QueueSpec, node: str) -> bool:
    """Whether a queue whose only copy is its master's may have it at that node."""
    member_changes = control.node.broker.member_changes
    placement = {} if member_changes is None else member_changes.rules_of(spec).placement
    named = placement.get("ha-params")
    return placement.get("ha-mode") != "nodes" or (isinstance(named, list) and node in named)


@COMMANDS.add(RUNNING, queue=NUMBER, node=TEXT)
async def local_hand_over(control: Control, queue: int, node: str) -> Any:
    begun = control.node.broker.mirrors.hand_over(_copy_here(control, queue), node, hasty=True)
    control.node.schedule()
    return {"begun": begun}


async def move_alone(control: Control, spec: QueueSpec, node: str) -> None:
    """Moves a queue without mirrors. That takes as long as copying its messages does; its master does it, also if this
    node dies: see `leveret.broker.mirrors.member_changes`."""
    key = (MOVES, spec.vhost, spec.name)
    clock = asyncio.get_running_loop().time
    seen, seen_s = None, clock()
    await control.change(SetParameter(*key, {"queue": spec.id, "to": node}))
    while True:
        now = control.node.metadata.queues.get((spec.vhost, spec.name))
        if now is None or now.id != spec.id:
            raise Refused(UNAVAILABLE, f"{_called(spec)} was deleted meanwhile")
        if now.node == node:
            return
        if moving_to(control.node.metadata, now) != node:
            raise Refused(UNAVAILABLE, f"the move of {_called(spec)} was given up, or node {node} was lost")
        copy = (await copies(control, node, [spec.id])).get(spec.id)
        if copy is not None and not copy["complete"] and copy["to_fill"]:
            control.progress = f"queue '{spec.name}': {100 * copy['filled'] // copy['to_fill']} % copied"
        if (now.view, copy) != seen:
            seen, seen_s = (now.view, copy), clock()
        elif clock() - seen_s > STALL_S:
            await control.change(ClearParameter(*key))
            raise Refused(UNAVAILABLE, f"the copy of {_called(spec)} on node {node} makes no progress; it stays")
        await asyncio.sleep(POLL_S)


async def _stay(control: Control, spec: QueueSpec) -> None:
    """Gives up a move that is under way."""
    if moving_to(control.node.metadata, spec) is not None:
        await control.change(ClearParameter(MOVES, spec.vhost, spec.name))


# -- Promotion by force --------------------------------------------------------------------------------------------


@COMMANDS.add(RUNNING, vhost=TEXT, name=TEXT, node=TEXT, confirmed=FLAG)
async def promote_queue(control: Control, vhost: str, name: str, node: str, confirmed: bool) -> Any:
    """Returns what a promotion by force would lose; with `confirmed`, promotes the copy."""
    spec, view = _mirrored(control, vhost, name)
    if node not in view.ring:
        raise Refused(UNAVAILABLE, f"node {node} has no copy of {_called(spec)}")
    _check_running(control, node)
    told = {one: await copies(control, one, [spec.id]) for one in view.ring if one in running_nodes(control)}
    there = {one: found[spec.id] for one, found in told.items() if spec.id in found}
    if node not in there:
        raise Refused(UNAVAILABLE, f"node {node} has no copy of {_called(spec)}, or does not answer")
    if there[node]["leads"]:
        raise Refused(UNAVAILABLE, f"node {node} leads {_called(spec)} already")
    led = [one for one, copy in there.items() if copy["leads"]]
    if led and there[node]["in_sync"]:
        text = f"the copy on {node} is synchronised: move_queue_master {name} {node} makes it lead with nothing lost"
        raise Refused(UNAVAILABLE, text)
    loss = _loss(view, node, there)
    if not confirmed:
        return {"done": False, **loss}
    if not (await control.at(node, "local_force", {"queue": spec.id}))["begun"]:
        raise Refused(UNAVAILABLE, f"node {node} cannot lead {_called(spec)} now; try again")
    if not await _until_led_by(control, spec, node):
        raise Refused(UNAVAILABLE, f"{_called(spec)} is still led by {spec.node}: no majority has agreed. Try again")
    after = (await copies(control, node, [spec.id])).get(spec.id, there[node])
    return {"done": True, **loss, "messages": after["messages"]}


def _loss(view: View, node: str, there: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Returns what is known of the messages that a copy lacks. `lost`: their number, None if no node that would know it
    answers."""
    mine = there[node]
    know = [copy["messages"] for one, copy in there.items() if one != node and (copy["leads"] or copy["in_sync"])]
    lost: int | None = max(0, max(know) - mine["messages"]) if know else None
    if mine["in_sync"]:
        lost = 0
    return {
        "messages": mine["messages"],
        "lost": lost,
        "synchronised": [one for one, copy in there.items() if copy["in_sync"]],
        "unreachable": [one for one, _ in view.in_sync if one not in there],
        "complete": mine["complete"],
        "filling": mine["filling"],
        "sync_done": mine["filled"],
        "sync_total": mine["to_fill"],
    }


@COMMANDS.add(RUNNING, queue=NUMBER)
async def local_force(control: Control, queue: int) -> Any:
    begun = control.node.broker.mirrors.force(_copy_here(control, queue))
    control.node.schedule()
    return {"begun": begun}


# -- Status --------------------------------------------------------------------------------------------------------


@COMMANDS.add(RUNNING)
async def mirror_sync_critical(control: Control) -> Any:
    """Returns the queues whose master is here and that have no mirror in sync: if this node stops, they are unavailable
    or lost."""
    alone = [
        {"name": one.spec.name, "vhost": one.spec.vhost}
        for one in status.mirrored(control.node.broker)
        if one.member.master is not None and not status.synchronised(one)
    ]
    return {"single": len(control.node.cluster.members()) == 1, "queues": alone}


def local_figures(control: Control) -> dict[str, int | float]:
    broker = control.node.broker
    counts, now_ms = broker.mirrors.journal.counts, int(time.time() * 1000)
    return {
        **status.figures(status.mirrored(broker), broker.mirrors.store, counts, now_ms),
        "queues_down": status.down(broker),
    }


@COMMANDS.add(RUNNING, vhost=TEXT.or_none(), only=TEXT.or_none(), columns=TEXTS, after=OBJECT.or_none())
async def mirror_status_rows(
    control: Control, vhost: str | None, only: str | None, columns: list[str], after: dict[str, Any] | None
) -> Any:
    """Returns a row for every copy of every mirrored queue, or of one."""
    check_columns(columns, columns_.MIRRORS)
    specs: Iterable[QueueSpec] = control.node.metadata.queues.values()
    if only is not None and vhost is not None:
        specs = [_mirrored(control, vhost, only)[0]]
    there = ((one.id, one) for one in specs if one.view is not None and vhost in (None, one.vhost))
    found, following = numbered_page(there, position(after))
    told, missing = await ask_homes(control, found, "local_mirror_status", {})
    rows: list[dict[str, Any]] = []
    for spec in found:
        now = control.node.metadata.queues.get((spec.vhost, spec.name), spec)
        rows += told.get(spec.id) or _status_rows(control, spec if now.view is None else now)
    await _add_copies(control, rows)
    return page([[row[column] for column in columns] for row in rows], following_cursor(following), missing)


@COMMANDS.add(RUNNING, queues=NUMBERS)
async def local_mirror_status(control: Control, queues: list[int]) -> Any:
    """Returns the rows of those of these queues whose master is at this node."""
    mirrors = control.node.broker.mirrors.mirrors
    led = [mirrors[number] for number in queues if number in mirrors and mirrors[number].member.master is not None]
    return {str(mirror.spec.id): _status_rows(control, mirror.spec, mirror) for mirror in led}


def _status_rows(control: Control, spec: QueueSpec, mirror: Mirror | None = None) -> list[dict[str, Any]]:
    """Returns a row for each copy of a queue, its master's first, without what only each copy knows. `mirror`: the
    master's."""
    assert spec.view is not None
    state = status.DOWN if mirror is None else status.state(mirror)
    rows = [_row(spec, spec.node, "master", state)]
    store, now_ms = control.node.broker.mirrors.store, int(time.time() * 1000)
    lags = [] if mirror is None else status.lags(mirror, store, now_ms)
    lag_of, running = {lag.node: lag for lag in lags}, running_nodes(control)
    for name in spec.view.order():
        if name != spec.node:
            rows.append(_mirror_row(spec, name, name in running, lag_of.get(name)))
    return rows


def _row(spec: QueueSpec, node: str, role: str, state: str) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(columns_.MIRRORS, "")
    return {**row, "queue": spec.name, "vhost": spec.vhost, "node": node, "role": role, "state": state, "id": spec.id}


def _mirror_row(spec: QueueSpec, node: str, running: bool, lag: status.Lag | None) -> dict[str, Any]:
    assert spec.view is not None
    state = "unsynchronised" if spec.view.disk_of(node) is None else "synchronised"
    row = _row(spec, node, "mirror", state if running else status.DOWN)
    if lag is not None and lag.messages is not None:
        row["lag_messages"] = lag.messages
        row["lag_bytes"] = "" if lag.bytes is None else lag.bytes
        row["lag_seconds"] = "" if lag.seconds is None else round(lag.seconds, 3)
    return row


async def _add_copies(control: Control, rows: list[dict[str, Any]]) -> None:
    """Adds what only each copy knows to its row."""
    wanted: dict[str, list[int]] = {}
    for row in rows:
        if row["state"] != status.DOWN:
            wanted.setdefault(row["node"], []).append(row["id"])
    answers = await asyncio.gather(*(copies(control, name, ids) for name, ids in wanted.items()))
    held: dict[int, int] = {}
    found = {(name, number): copy for name, one in zip(wanted, answers, strict=True) for number, copy in one.items()}
    for row in rows:  # The master's before its mirrors'.
        copy = found.get((row["node"], row["id"]))
        if copy is not None:
            row["messages"] = copy["messages"]
            if row["role"] == "master":
                held[row["id"]] = copy["messages"]
            if not copy["complete"]:
                row |= {"sync_done": copy["filled"], "sync_total": copy["to_fill"]}
                if row["id"] in held:
                    row["lag_messages"] = max(0, held[row["id"]] - copy["messages"])
            if row["role"] == "mirror" and row["state"] == "unsynchronised" and copy["filling"]:
                row["state"] = status.SYNCING
