"""What a command ends with: sysexits.h, as RabbitMQ's tools have it."""

OK = 0
USAGE = 64
DATA_ERROR = 65
UNAVAILABLE = 69
SOFTWARE = 70
CONFIG = 78
INTERRUPTED = 130
