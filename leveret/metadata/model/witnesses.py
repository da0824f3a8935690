"""The members that are witnesses: voters without queues and clients (`leveret witness`).

Each has a global parameter, set before the member joins, so that no node ever chooses it for a master or a mirror. The
parameter is removed with the member.

    node_witness:third@gamma  =  true
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from leveret.metadata.store import Metadata

WITNESS: Final = "node_witness:"  # Followed by the name of a member.


def witness_names(metadata: Metadata) -> frozenset[str]:
    """Return the names of all witnesses. There are few global parameters, so each is looked at."""
    return frozenset(name[len(WITNESS) :] for name in metadata.global_parameters if name.startswith(WITNESS))
