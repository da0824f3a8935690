"""Words and limits on which leveretctl and the nodes that it asks must agree."""

from __future__ import annotations

from typing import Final

# How leveretctl shows an error.
HEADED: Final = "headed"  # Under a line "Error:".
PLAIN: Final = "plain"  # The text alone.
ONE_LINE: Final = "line"  # "Error: " and the text.
TOLD: Final = "told"  # Not at all: the text is on stdout already.
WITH_USAGE: Final = "usage"  # With the usage of the command.
VALIDATION: Final = "validation"  # The same; the command was not tried.

# Definitions are sent in parts.
DOCUMENT_BYTES_MAX: Final = 256 << 20
PART_CHARACTERS: Final = 1 << 20

NO_MIRRORS: Final = "it has no mirrors"  # Why a queue stays at a node that is drained.
