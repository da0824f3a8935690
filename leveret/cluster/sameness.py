"""When two values of a policy or a parameter are the same."""

from __future__ import annotations

from leveret.cluster.specs import Json


def same_json(one: Json, other: Json) -> bool:
    """Equality that tells 1 from true and from 1.0, as JSON's readers do and Python's `==` does not."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_json(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same_json(a, b) for a, b in zip(one, other, strict=True))
    return one == other
