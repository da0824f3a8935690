"""Which nodes are out of service by somebody's wish: in maintenance, or about to leave the cluster.

That a node is so is a global parameter, agreed on like all metadata, so that every node knows it before the first queue
is given away: none chooses the node for a new master or hands it one, and it hands over the leadership of the cluster.
(Ring members that it has stay with it: it will be back, and to copy them elsewhere would cost more than it is away.)

    node_maintenance:two@localhost  =  {"state": "draining" | "leaving", "run": …}

The parameter names the *run* of the node that it was said of. A node that is started again has another run, which the
same command tells that says that it has started: so maintenance ends with a restart, as in RabbitMQ, at the same moment
for all nodes, and nothing has to be cleaned up first. What is left of an earlier run means nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from leveret.base.json_values import Json
    from leveret.metadata.store import Metadata

MAINTENANCE: Final = "node_maintenance:"  # Before the name of a node: the global parameter that says so.
DRAINING: Final = "draining"  # It will be back.
LEAVING: Final = "leaving"  # It will not.
STATES: Final = (DRAINING, LEAVING)


def mark(state: str, run: str) -> dict[str, Json]:
    """The value of the parameter."""
    return {"state": state, "run": run}


def state_of(metadata: Metadata, node: str) -> str | None:
    """None: it is in service, or was started again since."""
    found = metadata.global_parameters.get(MAINTENANCE + node)
    if not isinstance(found, dict) or found.get("run") != metadata.runs.get(node):
        return None
    state = found.get("state")
    return state if isinstance(state, str) and state in STATES else None


def out_of_service(metadata: Metadata) -> frozenset[str]:
    """Most often nobody, which costs a look at each name of a few."""
    names = (name[len(MAINTENANCE) :] for name in metadata.global_parameters if name.startswith(MAINTENANCE))
    return frozenset(name for name in names if state_of(metadata, name) is not None)
