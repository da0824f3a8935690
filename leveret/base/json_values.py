"""JSON values, as in policies and parameters, and their comparison."""

from __future__ import annotations

from typing import TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


def same_json(one: Json, other: Json) -> bool:
    """Return whether two values are equal; unlike for Python's `==`, 1 differs from true and from 1.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_json(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same_json(a, b) for a, b in zip(one, other, strict=True))
    return one == other
