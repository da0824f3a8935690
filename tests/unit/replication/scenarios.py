"""All scenes."""

from __future__ import annotations

from . import scenes_master, scenes_mirror, scenes_sync
from .scenes import SCENARIOS

__all__ = ["SCENARIOS", "scenes_master", "scenes_mirror", "scenes_sync"]
