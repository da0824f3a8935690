"""Global parameters: who may set which, and the values they take.

RabbitMQ lets every policymaker set any global parameter. Here some of them change the whole cluster, and some are
written by the nodes, so there are three classes of names:

- *internal*: written by the nodes themselves (`internal_cluster_id`, labels and maintenance of nodes, renamings, recent
  moves). Every user who may see parameters sees them; the HTTP API, leveretctl and imported definitions can neither set
  nor clear them.
- *administrator*: the cluster's name and its rules (`cluster_partition_handling`, `ha-forbid-copying`). Over HTTP they
  need the tag `administrator`, whichever path of the API is used.
- all others have no meaning for the broker. A policymaker may set them, as in RabbitMQ.

The metadata store calls `fault_of` when it applies a command, so an invalid value is refused on every path, also from
an older tool or another node. It depends on its arguments only and gives the same result on every node.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, TypeGuard

from leveret.base.json_values import Json
from leveret.metadata.model.maintenance_mark import MAINTENANCE, STATES
from leveret.metadata.model.refusals import fits
from leveret.metadata.model.renaming import RENAMING
from leveret.metadata.rules import partition_handling
from leveret.metadata.rules.ha_policy import FORBID
from leveret.metadata.rules.placement import LABELS, REBALANCE

CLUSTER_ID: Final = "internal_cluster_id"  # RabbitMQ's name for it.
CLUSTER_NAME: Final = "cluster_name"

COUNT_MAX: Final = 1_024  # Parameters of all classes together.
DEPTH_MAX: Final = 32
WEIGHT_MAX: Final = 64 << 10  # The size of a value, in characters of JSON, roughly.
INTERNAL_WEIGHT_MAX: Final = 256 << 10
CLUSTER_NAME_CHARACTERS_MAX: Final = 255  # It is sent to every client before the login.
TEXT_CHARACTERS_MAX: Final = 255  # Of a text in an object.

_OF_NODES: Final = (LABELS, MAINTENANCE, RENAMING)  # Each followed by the name of a node.
_INTERNAL: Final = (CLUSTER_ID, REBALANCE)
_ADMINISTRATORS: Final = (CLUSTER_NAME, partition_handling.PARAMETER, FORBID)
_CLUSTER_ID: Final = re.compile(r"leveret-cluster-id-([0-9a-f]{32})")
_REBALANCE_KEYS: Final = {"runs", "moves", "last", "moved"}


def is_internal(name: str) -> bool:
    """Return whether only nodes write a parameter."""
    return name in _INTERNAL or name.startswith(_OF_NODES)


def needs_administrator(name: str) -> bool:
    """Return whether setting a parameter takes more than the tag `policymaker`."""
    return name in _ADMINISTRATORS or is_internal(name)


def reserved_text(name: str) -> str:
    """Return the error text for an attempt to write an internal parameter."""
    return f"global parameter {name} is internal: the cluster sets it by itself"


def cluster_id_text(raw: bytes) -> str:
    """Return the value of `internal_cluster_id`."""
    return f"leveret-cluster-id-{raw.hex()}"


def parse_cluster_id(value: Json) -> bytes | None:
    """Return the sixteen bytes in a value of `internal_cluster_id`; None if it is invalid."""
    found = _CLUSTER_ID.fullmatch(value) if isinstance(value, str) else None
    return None if found is None else bytes.fromhex(found[1])


def fault_of(kept: Mapping[str, Json], name: str, value: Json) -> str | None:
    """Return why a parameter cannot get a value, next to those that are `kept`; None if it can."""
    if not name or not fits(_own_part(name)):
        return "the name of a global parameter is UTF-8 of 1 to 255 bytes"
    if name not in kept and len(kept) >= COUNT_MAX and not is_internal(name):
        return f"there are {len(kept)} global parameters; at most {COUNT_MAX} are kept"
    if (fault := bulk_fault(value, INTERNAL_WEIGHT_MAX if is_internal(name) else WEIGHT_MAX)) is not None:
        return f"{name}: {fault}"
    if name == CLUSTER_ID and parse_cluster_id(kept.get(name)) not in (None, parse_cluster_id(value)):
        return f"{name}: the id of a cluster never changes"
    fault = _value_fault(name, value)
    return None if fault is None else f"{name}: {fault}"


def _own_part(name: str) -> str:
    """Return the name without our prefix: what follows may itself be as long as a name can be."""
    return name.partition(":")[2] if name.startswith(_OF_NODES) else name


def clear_fault_of(kept: Mapping[str, Json], name: str) -> str | None:
    """Return why a parameter cannot be removed; None if it can."""
    if name == CLUSTER_ID and parse_cluster_id(kept.get(name)) is not None:
        return f"{name}: the id of a cluster is never removed"
    return None


def bulk_fault(value: Json, weight_max: int) -> str | None:
    """Return why a value is too big; None if it is not. Stops at the limit."""
    weight, todo = 0, [(value, 1)]
    while todo:
        one, depth = todo.pop()
        if depth > DEPTH_MAX:
            return f"a value is nested at most {DEPTH_MAX} times"
        if isinstance(one, dict):
            weight += sum(map(len, one)) + 4 * len(one)
            todo.extend((inner, depth + 1) for inner in one.values())
        elif isinstance(one, list):
            weight += len(one)
            todo.extend((inner, depth + 1) for inner in one)
        elif isinstance(one, int) and not isinstance(one, bool):
            weight += one.bit_length() // 3 + 1
        else:
            weight += len(one) + 2 if isinstance(one, str) else 8
        if weight > weight_max:
            return f"a value takes at most {weight_max} characters of JSON"
    return None


def _value_fault(name: str, value: Json) -> str | None:
    if name == CLUSTER_ID:
        return None if parse_cluster_id(value) is not None else "this is no id of a cluster"
    if name == CLUSTER_NAME:
        return cluster_name_fault(value)
    if name == partition_handling.PARAMETER:
        return partition_handling.fault_of(value)
    if name == FORBID:
        return None if isinstance(value, bool) else "must be true or false"
    if name == REBALANCE:
        is_fit = isinstance(value, dict) and set(value) == _REBALANCE_KEYS and isinstance(value["moved"], dict)
        return None if is_fit else "this is no account of what was rebalanced"
    if name.startswith(LABELS):
        return None if isinstance(value, dict) and _are_texts(value) else "labels are an object of texts"
    if name.startswith(MAINTENANCE):
        is_fit = _has_texts(value, {"state", "run"}) and value["state"] in STATES
        return None if is_fit else "this is no state of a node"
    if name.startswith(RENAMING):
        return None if _has_texts(value, {"new", "id"}) else "this is no renaming"
    return None


def cluster_name_fault(value: Json) -> str | None:
    if isinstance(value, str) and 0 < len(value) <= CLUSTER_NAME_CHARACTERS_MAX and fits_utf8(value):
        return None
    return f"must be a string of 1 to {CLUSTER_NAME_CHARACTERS_MAX} characters"


def fits_utf8(text: str) -> bool:
    """Return whether a text can be sent as UTF-8: one from JSON may contain half a surrogate pair."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _are_texts(value: Mapping[str, Json]) -> bool:
    return all(isinstance(one, str) and len(one) <= TEXT_CHARACTERS_MAX for one in value.values())


def _has_texts(value: Json, names: set[str]) -> TypeGuard[dict[str, str]]:
    return isinstance(value, dict) and set(value) == names and _are_texts(value)
