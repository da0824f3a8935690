"""Nodes that an operator took out of service: in maintenance, or about to leave the cluster.

The state is a global parameter, agreed on like all metadata, so that every node knows it before the first queue is
given away: no node chooses this one for a new master or hands one over to it, and it hands over the leadership of the
cluster. (Mirrors on the node stay there: it will be back soon, and copying them elsewhere would cost more.)

    node_maintenance:two@localhost  =  {"state": "draining" | "leaving", "run": …}

The parameter names the *run* of the node. A restarted node has another run, which its `NodeStarted` command carries. So
maintenance ends with a restart, as in RabbitMQ, at the same moment for all nodes, and nothing has to be cleaned up
first. A parameter of an earlier run has no effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from leveret.base.json_values import Json
    from leveret.metadata.store import Metadata

MAINTENANCE: Final = "node_maintenance:"  # Followed by the name of a node: a global parameter.
DRAINING: Final = "draining"  # In maintenance; it will be back.
LEAVING: Final = "leaving"  # About to leave the cluster.
STATES: Final = (DRAINING, LEAVING)


def mark(state: str, run: str) -> dict[str, Json]:
    """Return the value of the parameter."""
    return {"state": state, "run": run}


def state_of(metadata: Metadata, node: str) -> str | None:
    """Return `DRAINING` or `LEAVING`. None: the node is in service, or was restarted since."""
    found = metadata.global_parameters.get(MAINTENANCE + node)
    if not isinstance(found, dict) or found.get("run") != metadata.runs.get(node):
        return None
    state = found.get("state")
    return state if isinstance(state, str) and state in STATES else None


def out_of_service(metadata: Metadata) -> frozenset[str]:
    """Return the nodes that are out of service. There are few global parameters, so each is looked at."""
    names = (name[len(MAINTENANCE) :] for name in metadata.global_parameters if name.startswith(MAINTENANCE))
    return frozenset(name for name in names if state_of(metadata, name) is not None)
