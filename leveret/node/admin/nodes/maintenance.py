"""Control commands for taking a node out of service, and back: drain, revive, restart, leave.

What a node in maintenance does is in `leveret.node.cluster.maintenance`; these commands request it and wait for it. If
the caller disconnects meanwhile, the state holds: it is part of the metadata, not of the command.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from leveret.base.control_protocol import NO_MIRRORS
from leveret.base.exit_codes import TIMED_OUT, UNAVAILABLE
from leveret.links.frame_types import CONTROL
from leveret.metadata.model.commands import ClearGlobalParameter, SetGlobalParameter
from leveret.metadata.model.hidden_queues import is_hidden_queue, is_journal
from leveret.metadata.model.maintenance_mark import DRAINING, LEAVING, MAINTENANCE, mark, state_of
from leveret.node.admin.common.command import ALWAYS, FLAG, NUMBER, RUNNING, Commands, NoAnswer, Refused
from leveret.node.admin.nodes.rebalancer import BY_ITSELF
from leveret.node.admin.queues.mirrors import move_alone, move_queue_master
from leveret.node.cluster.consensus import AdminError, split_address
from leveret.node.cluster.maintenance import ClientsLeft
from leveret.node.sockets.peer_socket import CallFailed
from leveret.node.system.time_slices import TimeSlices

if TYPE_CHECKING:
    from leveret.metadata.model.records import QueueSpec
    from leveret.node.admin.dispatch import Control

logger = logging.getLogger("leveret")

COMMANDS = Commands()

SHOWN_MAX: Final = 100  # Queues that are named; the rest is counted.
MOVES_AT_ONCE: Final = 4
CALL_S: Final = 5.0

NOT_IN_SYNC: Final = "none of its mirrors in service is in sync"


# -- In and out ----------------------------------------------------------------------------------------------------


async def _mark(control: Control, state: str) -> None:
    """Records the node's maintenance state in the metadata. Raises Refused."""
    node = control.node
    if state_of(node.metadata, control.name) != state:
        await control.change(SetGlobalParameter(MAINTENANCE + control.name, mark(state, node.cluster.run)))


@COMMANDS.add(RUNNING, move_unmirrored=FLAG.or_none())
async def drain(control: Control, move_unmirrored: bool | None) -> Any:
    """Puts the node into maintenance mode. The answer names the queues that stay here, and why."""
    if control.life.locked():
        raise Refused(UNAVAILABLE, "this node is leaving its cluster, or is being reset")
    node = control.node
    clients, before = len(node.broker.connections), {spec.id for spec in node.maintenance.led()}
    await _mark(control, DRAINING)
    await node.maintenance.clients_gone()
    await node.maintenance.handed_over(lambda text: _tell(control, text))
    handed_over = len(before - {spec.id for spec in node.maintenance.led()})
    moved, problems = 0, dict[int, str]()
    if move_unmirrored:
        moved, problems = await _move_away(control)
    kept = [
        {"vhost": spec.vhost, "name": spec.name, "why": problems.get(spec.id) or _why(spec)}
        for spec in node.maintenance.led()
    ]
    logger.info("Node is ready to be shut down for maintenance or upgrade")
    return {
        "clients": clients,
        "handed_over": handed_over,
        "moved": moved,
        "kept": kept[:SHOWN_MAX],
        "kept_count": len(kept),
    }


def _tell(control: Control, text: str) -> None:
    control.progress = text


def _is_alone(spec: QueueSpec) -> bool:
    return spec.view is None or spec.view.ring == (spec.node,)


def _why(spec: QueueSpec) -> str:
    return NO_MIRRORS if _is_alone(spec) else NOT_IN_SYNC


async def _move_away(control: Control) -> tuple[int, dict[int, str]]:
    """Moves queues without mirrors to other nodes: each gets a mirror there, which becomes the master. Returns how many
    were moved, and the problems of the others."""
    node = control.node
    specs = [spec for spec in node.maintenance.led() if _is_alone(spec)]
    problems: dict[int, str] = {}

    async def move_one(spec: QueueSpec) -> None:
        try:
            to = node.maintenance.next_home()
            if is_hidden_queue(spec.name):  # A hidden queue, which commands cannot name.
                await move_alone(control, spec, to)
            else:
                await move_queue_master(control, spec.vhost, spec.name, to)
        except (Refused, AdminError) as error:
            if (spec.vhost, spec.name) in node.metadata.queues:
                problems[spec.id] = str(error)

    for begin in range(0, len(specs), MOVES_AT_ONCE):
        some = specs[begin : begin + MOVES_AT_ONCE]
        control.progress = f"{begin - len(problems)} of {len(specs)} queues without mirrors moved"
        await asyncio.gather(*map(move_one, some))
        control.progress = f"{begin + len(some) - len(problems)} of {len(specs)} queues without mirrors moved"
    return len(specs) - len(problems), problems


@COMMANDS.add(RUNNING)
async def revive(control: Control) -> None:
    from leveret.node.sockets.listeners import StartFailed

    server = control.server
    if control.life.locked() and state_of(control.node.metadata, control.name) != LEAVING:
        raise Refused(UNAVAILABLE, "this node is being reset")
    if MAINTENANCE + control.name in control.node.metadata.global_parameters:
        await control.change(ClearGlobalParameter(MAINTENANCE + control.name))
    if server.listeners.is_suspended:
        try:
            await server.listeners.open(server.node)
        except StartFailed as error:
            server.listeners.close()
            raise Refused(UNAVAILABLE, str(error)) from None
        server.announce()
    await server.listeners.reopened()
    logger.info("Marked this node as back from maintenance and ready to serve clients")


# -- Restarting ----------------------------------------------------------------------------------------------------


@COMMANDS.add(ALWAYS)
async def restart_node(control: Control) -> Any:
    """Stops the process in a controlled way, and starts it again with the same arguments. The answer is written
    before."""
    if not control.server.request_restart():
        text = "this node is part of another process, which alone can start it again"
        raise Refused(UNAVAILABLE, text)
    return {"node": control.name}


@COMMANDS.add(ALWAYS)
async def service_state(control: Control) -> Any:
    """Returns the id of this run of the node, and whether it serves clients. `run` is null while the app is stopped or
    starting."""
    server = control.server
    node = server.node if server.prepared else None
    return {
        "node": control.name,
        "run": None if node is None else node.cluster.run,
        "state": None if node is None else state_of(node.metadata, control.name),
        "serves": node is not None and not node.pausing.paused and any(one.startswith("amqp") for one in server.ports),
    }


@COMMANDS.add(RUNNING)
async def restart_state(control: Control) -> Any:
    """Returns what a rolling restart has to know before it stops the next node, as this node sees it."""
    node = control.node
    metadata, member_changes = node.metadata, node.broker.member_changes
    members = node.cluster.members()
    running = {one.name for one in members if one.running}
    unsynced: list[dict[str, Any]] = []
    unmirrored: dict[str, int] = {}
    count, slices = 0, TimeSlices()
    for spec in list(metadata.queues.values()):
        if slices.is_over():
            await slices.rest()
        if spec.exclusive or is_journal(spec.name) or is_hidden_queue(spec.name):
            continue
        if _is_alone(spec):
            unmirrored[spec.node] = unmirrored.get(spec.node, 0) + 1
            continue
        lacking = sorted(running & set(_lacking(spec, metadata.runs)))
        if lacking:
            count += 1
            if len(unsynced) < SHOWN_MAX:
                by_itself = member_changes is None or member_changes.rules_of(spec).fills
                unsynced.append({"vhost": spec.vhost, "name": spec.name, "nodes": lacking, "by_itself": by_itself})
    return {
        "node": control.name,
        "leader": node.cluster.leader,
        "has_majority": node.cluster.has_majority,
        "members": [
            {
                "name": one.name,
                "address": one.address,
                "voter": one.voter,
                "running": one.running,
                "paused": node.pausing.is_paused(one.name),
                "state": state_of(metadata, one.name),
            }
            for one in members
        ],
        "unsynced": unsynced,
        "unsynced_count": count,
        "unmirrored": unmirrored,
    }


def _lacking(spec: QueueSpec, runs: dict[str, str]) -> Iterable[str]:
    """Returns the members of a ring that are not in sync. So is a copy of a transient queue whose
    node was started since: its messages ended with the earlier run."""
    assert spec.view is not None
    for name in spec.view.ring:
        disk = spec.view.disk_of(name)
        if disk is None or (not spec.durable and not disk.startswith(runs.get(name, "\0"))):
            yield name


# -- Leaving -------------------------------------------------------------------------------------------------------


@COMMANDS.add(RUNNING, force=FLAG.or_none(), seconds=NUMBER.or_none())
async def leave_cluster(control: Control, force: bool | None, seconds: int | None) -> None:
    """Takes the node out of the cluster for good: first its queues, then its clients, then the node."""
    async with control.life:
        others = [one for one in control.node.cluster.members() if one.name != control.name]
        if not others:
            raise Refused(UNAVAILABLE, "this is the only node of its cluster: nobody could take its queues")
        if not any(one.running for one in others):
            raise Refused(UNAVAILABLE, "there is no other running node that could take the queues")
        await _mark(control, LEAVING)
        try:
            await _make_room(control, bool(force), seconds)
            await control.server.leave(lambda text: _tell(control, text))
        except ClientsLeft as error:
            raise Refused(TIMED_OUT, str(error)) from None
        except (AdminError, Refused):
            await _take_back(control)
            raise
    await _order_rebalance(control, [one.address for one in others if one.running])


async def _make_room(control: Control, force: bool, seconds: int | None) -> None:
    maintenance = control.node.maintenance
    await maintenance.handed_over(lambda text: _tell(control, text))
    await _move_away(control)  # Queues that stay are tried again when the clients are gone; then it is an error.
    users = maintenance.users()
    if users.connections and not force:
        logger.warning("this node leaves its cluster as soon as these are gone: %s", users)
        running = [one.address for one in control.node.cluster.members() if one.running and one.name != control.name]
        await _order_rebalance(control, running)
    await maintenance.users_gone(lambda text: _tell(control, text), force, seconds)


async def _take_back(control: Control) -> None:
    """Revives the node after a failed attempt to leave, without the queues that were moved."""
    if control.server.node is None:
        return
    try:
        await control.change(ClearGlobalParameter(MAINTENANCE + control.name))
    except (AdminError, Refused) as error:
        logger.error("this node stays out of service: %s. See: leveretctl help revive", error)


async def _order_rebalance(control: Control, addresses: list[str]) -> None:
    """Asks any of the other nodes to have their leader rebalance, if the cluster is configured to."""
    payload = json.dumps({"command": "look_at_balance", "arguments": {}}).encode()
    for address in addresses:
        try:
            await control.server.peers.call(split_address(address), CONTROL, payload, CALL_S)
            return
        except CallFailed as error:
            logger.info("node at %s was not told to rebalance: %s", address, error)


@COMMANDS.add(RUNNING)
async def look_at_balance(control: Control) -> None:
    """Begins a rebalancing after nodes have joined or left. It is not waited for; the result is only in the log."""
    leader = control.node.cluster.leader
    if control.rebalancer.schedule.trigger not in BY_ITSELF or leader is None:
        return
    if leader == control.name:
        control.begin(f"balance.{control.node.cluster.run[:16]}", "rebalance_by_itself", {})
        return
    try:
        await control.at(leader, "look_at_balance", {})
    except NoAnswer as error:
        logger.info("rebalancing: %s", error)


@COMMANDS.add(RUNNING)
async def rebalance_by_itself(control: Control) -> None:
    if control.rebalancer.leads() and not control.rebalancer.busy:
        await control.rebalancer.run_by_itself()
