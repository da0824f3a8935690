"""Whose messages these are, and which: what a producer's publishes carry to their queues. See `producers`."""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

PREFIX: Final = b"producer:"  # Of the marks in which queues remember producers.
ENTRY: Final = Struct(">QQ")  # The highest number taken, and when something last came, by the wall clock.
NAME_BYTES_MAX: Final = 128


class Origin(NamedTuple):
    """The producer of messages, and their numbers."""

    producer: bytes
    first: int  # The number of the first one; the others have those that follow.
    previous: int  # The last that its connection sent to the same queue before; 0: nothing.
