"""Reads the JSON objects of other nodes' requests and answers."""

from __future__ import annotations

import json
from typing import Any


def read_object(data: bytes | str) -> dict[str, Any]:
    """Reads a JSON object. Raises ValueError if it is none, or is nested so deeply that Python gives up."""
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    return value
