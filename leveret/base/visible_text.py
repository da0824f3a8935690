"""Text from outside, made fit for a log, a terminal or an answer.

A name may contain anything: newlines that would start a forged log entry, escape sequences that a terminal obeys,
characters that change the direction of writing, megabytes of any of them. All text from outside passes `visible` before
it is displayed.
"""

from __future__ import annotations

import re
from typing import Final

CHARACTERS_MAX: Final = 1_000

# Control characters of ASCII and C1 (which terminals obey too), line and paragraph separators, direction marks.
CONTROLS: Final = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"
_CONTROL: Final = re.compile(f"[{CONTROLS}]")
_CONTROL_BUT_NEWLINE: Final = re.compile(f"(?!\n)[{CONTROLS}]")


def visible(text: object, characters_max: int = CHARACTERS_MAX) -> str:
    """Return a text as one line without control characters, shortened to the limit."""
    return _CONTROL.sub(_escaped, shortened(str(text), characters_max))


def visible_lines(text: str, characters_max: int, lines_max: int) -> str:
    """Return a text whose line breaks are our own likewise, line by line."""
    found = shortened(text, characters_max).split("\n")
    if len(found) > lines_max:
        found[lines_max:] = [f"… ({len(found) - lines_max} more lines)"]
    return _CONTROL_BUT_NEWLINE.sub(_escaped, "\n".join(found))


def shortened(text: str, characters_max: int) -> str:
    if len(text) <= characters_max:
        return text
    return f"{text[:characters_max]}… ({len(text) - characters_max} more characters)"


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
