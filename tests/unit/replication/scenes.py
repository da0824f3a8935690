"""Scenes for one member each: what it must do, and above all what it must not. Mutations are tried on all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from leveret.replication.ring_frames import Effect, Write

SCENARIOS: list[Callable[[], None]] = []


def scenario(call: Callable[[], None]) -> Callable[[], None]:
    SCENARIOS.append(call)
    return call


def changes(effects: list[Effect], kind: type) -> list[Any]:
    return [one.change for one in effects if isinstance(one, Write) and isinstance(one.change, kind)]
