"""Writes several buffers to a transport."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

Buffer = bytes | bytearray | memoryview


def write_all(transport: asyncio.Transport, buffers: Sequence[Buffer]) -> None:
    """Writes the buffers one after the other.

    A node runs on uvloop; asyncio's own loop is that of command line tools and of some tests. Its `writelines` never
    says that the transport's buffer is full, before Python 3.12.9 and 3.13.2 (CVE-2024-12254), and what waits there
    would have no bound. uvloop's transports are no subclasses of asyncio's.
    """
    if isinstance(transport, asyncio.Transport):
        transport.write(b"".join(buffers))
    else:
        transport.writelines(buffers)
