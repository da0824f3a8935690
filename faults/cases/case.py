"""What a case is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faults.cases.run import Run

SECONDS = 60.0


@dataclass(frozen=True)
class Case:
    """A fault with its load. `strike` makes the fault once and ends it; it is called until the time is up."""

    name: str
    fault: str
    load: Callable[[Run], None]
    strike: Callable[[Run], None]
    row: int = 0  # In the list of twenty faults that the suite follows; 0 for others.
    seconds: float = SECONDS
    nodes: int = 3
    spare: int = 0  # Further machines, on which nodes may join.
    disks: bool = False  # Data folders are on forgetful disks.
    clocks: bool = False  # Clocks can be set.
    config: str = ""  # Of Leveret.
    plugins: tuple[str, ...] = ()  # Of RabbitMQ.
    only_leveret: bool = False
