"""Whether a node may be asked for messages over HTTP. One that is paused tells of itself, and gives nothing away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.management.http.http_messages import Problem

if TYPE_CHECKING:
    from leveret.node.node import Node


def paused_text(node: Node) -> str:
    text = f"this node is paused and serves nobody: {node.pausing.partitions.reason}"
    waiting = node.cluster.two_nodes.waiting_for()
    if waiting is None or waiting["command"] is None:
        return text
    names = ", ".join(waiting["nodes"])
    return f"{text}. It waits for {names}; to go on without it: {waiting['command']} ({waiting['cost']})"


def check_serving(node: Node) -> None:
    """Raises Problem."""
    if node.pausing.paused:
        raise Problem(503, "service_unavailable", paused_text(node))
