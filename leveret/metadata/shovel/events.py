"""Changes of who runs what."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AssignmentChanged:
    """Something is run by another node, or anew, or no longer."""

    component: str
    vhost: str
    name: str
