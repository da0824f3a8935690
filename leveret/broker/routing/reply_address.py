"""Names of direct reply-to: the pseudo-queue that a client consumes from, and the addresses made from it."""

from __future__ import annotations

from typing import Final

ADDRESS: Final = "amq.rabbitmq.reply-to"
PREFIX: Final = ADDRESS + "."
