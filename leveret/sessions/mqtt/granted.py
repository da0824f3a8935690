"""What the subscriptions of a client say about a message."""

from __future__ import annotations

from typing import NamedTuple


class Granted(NamedTuple):
    """What the subscriptions that match a message say about it."""

    qos: int
    retain_as_published: bool
    identifiers: tuple[int, ...]
