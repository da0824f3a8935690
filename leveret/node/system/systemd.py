"""Tells a service manager that the node is ready, or stops: systemd's protocol, which others understand too.

A service of `Type=notify` counts as started when it says so. The message is a datagram to a socket that the environment
names; where it names none, nobody is listening.
"""

from __future__ import annotations

import logging
import os
import socket
import time

logger = logging.getLogger("leveret")

VARIABLE = "NOTIFY_SOCKET"


def reloading() -> str:
    """Returns the state of a process that stops serving and will be ready again. STOPPING would not do: a process that
    says so is killed if it does not end."""
    return f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}"


def tell(state: str) -> None:
    """Sends a state: `READY=1`, `STOPPING=1`, `STATUS=...`. A manager that does not listen is no reason to stop."""
    address = os.environ.get(VARIABLE)
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]  # An abstract socket, which has no file.
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.connect(address)
            channel.sendall(state.encode())
    except OSError as error:
        logger.warning("the service manager cannot be told %s: %s", state, error.strerror or error)
