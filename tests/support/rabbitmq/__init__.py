"""Data of RabbitMQ 3.10: an export of definitions, its configuration keys, its commands."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).parent

DEFINITIONS: Final = _HERE / "definitions-3.10.8.json"
KEYS: Final = _HERE / "keys-3.10.txt"
COMMANDS: Final = _HERE / "commands-3.10.txt"
