"""Text that somebody else chose, made fit for a log, a terminal or an answer.

A name may hold anything that bytes can say: newlines that would begin a forged entry, escape sequences that a terminal
obeys, characters that turn the direction of writing, megabytes of any of them. Whatever comes from outside passes
`visible` before it is written for people.
"""

from __future__ import annotations

import re
from typing import Final

CHARACTERS_MAX: Final = 1_000

# Controls of ASCII and of C1 (which terminals obey too), ends of lines and paragraphs, marks of direction.
CONTROLS: Final = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"
_CONTROL: Final = re.compile(f"[{CONTROLS}]")
_CONTROL_BUT_NEWLINE: Final = re.compile(f"(?!\n)[{CONTROLS}]")


def visible(text: object, characters_max: int = CHARACTERS_MAX) -> str:
    """The text in one line, without anything that does more than to be seen, and no longer than that."""
    return _CONTROL.sub(_escaped, shortened(str(text), characters_max))


def visible_lines(text: str, characters_max: int, lines_max: int) -> str:
    """The same for a text whose lines are our own."""
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
