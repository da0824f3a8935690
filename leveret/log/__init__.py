"""The durable log of one node. `log` tells how it works, docs/log-format.md what the files look like."""

from .block import PERSISTENT, REDELIVERED, SHARED, Block, Run
from .disk import Disk, FileDisk, Job
from .errors import Damage, LogDamaged, LogStopped
from .jobs import Load, Write
from .log import Log, LogOptions
from .queue import QueueLog
from .ranges import RangeSet

__all__ = [
    "PERSISTENT", "REDELIVERED", "SHARED", "Block", "Damage", "Disk", "FileDisk", "Job", "Load", "Log", "LogDamaged",
    "LogOptions", "LogStopped", "QueueLog", "RangeSet", "Run", "Write",
]  # fmt: skip
