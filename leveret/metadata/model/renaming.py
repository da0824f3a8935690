"""Nodes that are being renamed.

A node's name is in two places: the membership, and the metadata, which names the queues' nodes. Changing them takes two
entries of the log, and a leader may die between them. A node that started then, under either name, would find no queue
of its own and delete their messages from its log. So a global parameter with the intention is set first:

    node_renaming:two@localhost  =  {"new": "second@localhost", "id": …}

The cluster's leader completes a renaming that it finds (`node/cluster/membership.py`), and lets the node join only when
the parameter is removed. The id identifies the member, whatever its name is by then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from leveret.base.json_values import Json
    from leveret.metadata.store import Metadata

RENAMING: Final = "node_renaming:"  # Followed by the old name: a global parameter.


class Renaming(NamedTuple):
    """A renaming under way."""

    old: str
    new: str
    id: str

    def to_json(self) -> dict[str, Json]:
        return {"new": self.new, "id": self.id}


def renamings(metadata: Metadata) -> list[Renaming]:
    """Return the renamings under way. Parameters of another form are ignored."""
    found = []
    for parameter, value in metadata.global_parameters.items():
        if parameter.startswith(RENAMING) and isinstance(value, dict):
            new, id_ = value.get("new"), value.get("id")
            if isinstance(new, str) and isinstance(id_, str):
                found.append(Renaming(parameter[len(RENAMING) :], new, id_))
    return found
