"""Control commands by which a node shows what only it knows about itself: event loop, Raft, links, listeners."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

from leveret.node.admin.common.command import FLAG, RUNNING, Commands
from leveret.node.admin.nodes.cluster import listeners
from leveret.node.config import config_as_text
from leveret.node.config.load import load
from leveret.node.system import logs
from leveret.node.system.loop_watch import BOUNDS_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.node.admin.dispatch import Control

COMMANDS = Commands()


@COMMANDS.add(RUNNING, settings=FLAG)
async def local_node_details(control: Control, settings: bool) -> Any:
    """Returns the details of this node; its settings too, if they are wanted. Secrets are never part of them."""
    found = {
        "listeners": listeners(control),
        "event_loop": _event_loop(control),
        "raft": _raft(control),
        "links": _links(control),
    }
    if settings:
        found["settings"] = _settings(control)
    return found


def _event_loop(control: Control) -> dict[str, Any]:
    turns = control.server.watch.turns
    return {
        "turns": sum(turns.counts),
        "mean_s": turns.sum_s / max(1, sum(turns.counts)),
        "longest_s": turns.longest_s,
        "busiest_s": turns.busiest_s,
        "slow": turns.slow,
        "bounds_s": list(BOUNDS_S),
        "counts": list(turns.counts),
    }


def _raft(control: Control) -> dict[str, Any]:
    cluster = control.node.cluster
    raft = cluster.raft
    return {
        "role": raft.role.name.lower(),
        "leader": cluster.leader,
        "term": raft.term,
        "last_index": raft.last_index,
        "commit_index": raft.commit,
        "applied_index": cluster.applied_index,
    }


def _links(control: Control) -> list[dict[str, Any]]:
    """Returns the links to the other members, witnesses included."""
    node = control.node
    return [
        {
            "name": member.name,
            "address": member.address,
            "is_up": node.peers.is_up(member.name),
            "is_writable": node.peers.is_writable(member.name),
            "unsent_bytes": node.peers.unsent_bytes(member.name),
        }
        for member in node.cluster.everybody()
        if member.name != control.name
    ]


def _settings(control: Control) -> list[dict[str, Any]]:
    """Returns the lines of a configuration file that gives the present settings, and the defaults that differ."""
    holds = config_as_text.pairs(dataclasses.replace(control.server.settings, log_levels=logs.levels()))
    home = {name: os.environ[name] for name in ("HOME",) if name in os.environ}
    return against_defaults(holds, config_as_text.pairs(load([], home).settings))


def against_defaults(holds: Mapping[str, str], usual: Mapping[str, str]) -> list[dict[str, Any]]:
    """Compares settings with their defaults. What has no default, such as a listener for MQTT, was set by somebody."""
    return [
        {"key": key, "value": value, "default": usual.get(key), "is_default": usual.get(key) == value}
        for key, value in sorted(holds.items())
    ]
