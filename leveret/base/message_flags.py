"""Flags of a message that are stored in the log and sent to clients in sheets. Their values are part of both
formats."""

from __future__ import annotations

from typing import Final

PERSISTENT: Final = 1  # Kept over a restart: written to the log.
REDELIVERED: Final = 2  # May have been delivered before.
EXPIRES: Final = 8  # Has an expiration among its properties.
