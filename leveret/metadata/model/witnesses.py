"""Which members are witnesses: voters that keep no queues and serve no clients (`leveret witness`).

That a member is one is a global parameter, agreed on before the member is let in, so that no node ever takes it for one
that could lead or mirror a queue. It goes with the member.

    node_witness:third@gamma  =  true
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from leveret.metadata.store import Metadata

WITNESS: Final = "node_witness:"  # Before the name of a member.


def witness_names(metadata: Metadata) -> frozenset[str]:
    """Most often nobody, which costs a look at each name of a few."""
    return frozenset(name[len(WITNESS) :] for name in metadata.global_parameters if name.startswith(WITNESS))
