"""Addresses of hosts."""

from __future__ import annotations


def is_loopback(host: str) -> bool:
    """Says whether an IP address is this machine's own: 127.0.0.0/8 or ::1, also as an IPv4-mapped address."""
    return host == "::1" or host.startswith(("127.", "::ffff:127."))
