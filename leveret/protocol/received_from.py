"""The header `x-received-from`, by which federation knows where a message has been.

It is an array of tables, the newest first, one for each link that the message has come by: the URI and the exchange or
queue it came from, the name of that cluster and the vhost there. A message goes on to a cluster and vhost only if it
came by fewer links than `max-hops`, and was not there before.

Whoever publishes may have written the header. What is no array counts as no header, and what is no table with the two
names counts as a hop from nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from leveret.protocol.tables import Field

RECEIVED_FROM: Final = "x-received-from"
CLUSTER: Final = "cluster-name"
VHOST: Final = "vhost"

# An exchange of this type, which a downstream makes upstream, passes on what may go to that downstream.
UPSTREAM_TYPE: Final = "x-federation-upstream"
MAX_HOPS_ARGUMENT: Final = "x-max-hops"
DOWNSTREAM_NAME: Final = "x-downstream-name"
DOWNSTREAM_VHOST: Final = "x-downstream-vhost"


def hops_of(headers: Mapping[str, Field]) -> list[Field]:
    """Return the entries of the header, the newest first."""
    field = headers.get(RECEIVED_FROM)
    return [] if field is None or field.kind != "A" else field.value


def was_at(hops: list[Field], cluster: str | None, vhost: str | None) -> bool:
    """Return whether one of these entries names a cluster and vhost. None: the name is not known, and fits nowhere."""
    if cluster is None or vhost is None:
        return False
    wanted = (Field("S", cluster), Field("S", vhost))
    return any(one.kind == "F" and (one.value.get(CLUSTER), one.value.get(VHOST)) == wanted for one in hops)


def may_go_on(headers: Mapping[str, Field], max_hops: int, cluster: str | None, vhost: str | None) -> bool:
    """Return whether a message may go to this cluster and vhost."""
    hops = hops_of(headers)
    return not hops or (len(hops) < max_hops and not was_at(hops, cluster, vhost))


def check_upstream_arguments(arguments: Mapping[str, Field]) -> str | None:
    """Return why no exchange of the type can have these arguments, in RabbitMQ's words; None if one can."""
    hops = arguments.get(MAX_HOPS_ARGUMENT)
    if hops is None:
        return f"Argument {MAX_HOPS_ARGUMENT} missing"
    return None if hops.kind == "l" else f"Argument {MAX_HOPS_ARGUMENT} must be of type long"
