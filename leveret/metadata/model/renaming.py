"""Which nodes are getting another name.

A node's name is in two places: the membership, and the metadata, which says what queues it has. They are two entries of
the log, and a leader may die between them. A node that started then, under either name, would find that none of its
queues is its own, and throw away what its log has of them. So the intention comes first, as a global parameter:

    node_renaming:two@localhost  =  {"new": "second@localhost", "id": …}

Whoever leads the cluster goes on with what he finds (`node/cluster/membership.py`), and lets a node in that is
concerned when the parameter is gone. The id says which member is meant, whatever its name is by then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from leveret.base.json_values import Json
    from leveret.metadata.store import Metadata

RENAMING: Final = "node_renaming:"  # Before the old name: the global parameter that says so.


class Renaming(NamedTuple):
    old: str
    new: str
    id: str

    def to_json(self) -> dict[str, Json]:
        return {"new": self.new, "id": self.id}


def renamings(metadata: Metadata) -> list[Renaming]:
    """Most often none, which costs a look at each name of a few. What somebody made up means nothing."""
    found = []
    for parameter, value in metadata.global_parameters.items():
        if parameter.startswith(RENAMING) and isinstance(value, dict):
            new, id_ = value.get("new"), value.get("id")
            if isinstance(new, str) and isinstance(id_, str):
                found.append(Renaming(parameter[len(RENAMING) :], new, id_))
    return found
