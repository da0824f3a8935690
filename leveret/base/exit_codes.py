"""The exit codes of all commands: those of sysexits.h, as in RabbitMQ's tools.

A node also sends them to leveretctl with an error, and leveretctl exits with the code it is sent.
"""

from __future__ import annotations

from typing import Final

OK: Final = 0
USAGE: Final = 64
DATA_ERROR: Final = 65
NO_USER: Final = 67
UNAVAILABLE: Final = 69
SOFTWARE: Final = 70
TIMED_OUT: Final = 75
CONFIG: Final = 78
INTERRUPTED: Final = 130  # By Ctrl-C, as in shells.
