"""Methods of channels that wait until what they asked for before is done; see `connection`.

They stay as they came, and all that a connection may put off is bounded: beyond that it is not read.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from leveret.base.shared_values import NO_DICT

BYTES_MAX: Final = 256 * 1024  # Of one connection. One method more may go beyond it.
METHOD_BYTES: Final = 64  # What a method takes besides its own bytes.


class ChangeBacklog:
    """Methods of one connection that wait for earlier changes of the metadata, by channel number."""

    __slots__ = ("_bytes", "_methods")

    def __init__(self) -> None:
        self._methods: dict[int, deque[bytes]] = NO_DICT
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._methods)

    @property
    def is_full(self) -> bool:
        return self._bytes >= BYTES_MAX

    def put(self, number: int, payload: bytes) -> None:
        if not self._methods:
            self._methods = {}
        self._methods.setdefault(number, deque()).append(payload)
        self._bytes += len(payload) + METHOD_BYTES

    def take(self, number: int) -> bytes | None:
        """The next method of a channel; None if there is none."""
        methods = self._methods.get(number)
        if methods is None:
            return None
        payload = methods.popleft()
        self._bytes -= len(payload) + METHOD_BYTES
        if not methods:
            del self._methods[number]
        return payload

    def clear(self) -> None:
        self._methods = NO_DICT
        self._bytes = 0
