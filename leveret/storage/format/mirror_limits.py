"""Limits of what a copy of a mirrored queue remembers. The log stores it, and the nodes of a ring send it to each
other."""

from __future__ import annotations

from typing import Final

HISTORY_MAX: Final = 1024  # Epochs, one for each promotion. A copy that missed more is filled from the beginning.
HAVE_MAX: Final = 64  # Ranges of messages that an incomplete copy has. Each interrupted sync adds one or two.
PIECE_RANGES_MAX: Final = 16_384  # Ranges of live messages in one answer, and of those that may have been delivered.
