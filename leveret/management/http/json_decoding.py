"""JSON of strangers, read without holding the event loop.

Python's reader takes up to a second for 10 MiB and cannot be interrupted; in a thread it holds the interpreter for as
long, and so everybody else. So a document is read in pieces, a millisecond at a time (`slices`):

- A value that fits into a *window* of some kilobytes is read by Python's reader at once. That is nearly every value of
  a real document: a queue among the definitions, a user, a binding.
- One that does not is opened: its brackets are read here, and what is in it is read in the same way. Whatever begins in
  a window that was tried in vain is opened without another try, so that no character is tried more than once and the
  time grows with the length of the document, however it is nested.
- A long string is read in chunks, between two of which others have their turn.

What Python's reader takes for JSON, and nobody else does, is refused: numbers that are none, and halves of characters,
which no protocol could carry on. (Bytes of a name that are no UTF-8 are told as halves, too; these stay.) So is what is
nested more than `DEPTH_MAX` levels deep, or has a number as long as a window, or more values than the caller allows:
values cost more memory than the bytes that they are told in.
"""

from __future__ import annotations

import codecs
import json
import re
from math import isfinite
from typing import Any, Final

from leveret.node.system.time_slices import TimeSlices

WINDOW: Final = 4 << 10  # Characters; some hundred microseconds at worst.
CHUNK: Final = 32 << 10  # Of a string.
DEPTH_MAX: Final = 64
VALUES_MAX: Final = 100_000

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_CHARACTERS: Final = re.compile(
    r'[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4})[^"\\\x00-\x1f]*+)*+'
)  # Of a string, none of them cut in the middle.
_ROW: Final = re.compile(r'(?:[^\[\]{}",]{1,64}+,)++')  # Of numbers and words, each with its comma.
_HIGH: Final = re.compile(r"\\u[dD][89abAB][0-9A-Fa-f]{2}\Z")
_LOW: Final = re.compile(r"\\u[dD][c-fC-F][0-9A-Fa-f]{2}")
_ESCAPE_CHARACTERS: Final = 6


class BadJson(ValueError):
    """No JSON, or more of it than is read."""


async def decoded(data: bytes, values_max: int = VALUES_MAX) -> Any:
    """The value of a document. Raises BadJson."""
    if len(data) <= WINDOW:
        return loaded(data)
    slices = TimeSlices(steps=1)
    decoder = codecs.getincrementaldecoder(json.detect_encoding(data[:4]))()
    parts = []
    for at in range(0, len(data), CHUNK):
        try:
            parts.append(decoder.decode(data[at : at + CHUNK], final=at + CHUNK >= len(data)))
        except UnicodeDecodeError as error:
            raise BadJson(f"the text is no {error.encoding}") from None
        if slices.is_over():
            await slices.rest()
    reader = _Reader("".join(parts), values_max)
    while not reader.is_done:
        reader.step()
        if slices.is_over():
            await slices.rest()
    return reader.value


def loaded(data: bytes) -> Any:
    """The value of a short document. Raises BadJson."""
    try:
        value = _DECODER.decode(data.decode(json.detect_encoding(data[:4])))
    except (ValueError, RecursionError) as error:
        raise BadJson(str(error)) from None
    _check(value, data.decode("latin-1"), 0)
    return value


class _Reader:
    """Reads one document, a piece in each `step`."""

    def __init__(self, text: str, values_max: int) -> None:
        self.text = text
        self.at = 0
        self.value: Any = None
        self.is_done = False
        self._open: list[list[Any] | dict[str, Any]] = []  # From the outermost to the innermost.
        self._keys: list[str] = []  # Of each open object: what the next value is called.
        self._tried = 0  # Windows up to here were tried in vain.
        self._left = self._values_max = values_max
        self._string: list[str] | None = None  # Of the string that is being read.
        self._is_key = False  # That string is the name of a value.

    def step(self) -> None:
        """Read something. Raises BadJson."""
        if self._string is not None:
            self._go_on_with_string()
            return
        self._skip()
        first = self._character()
        if first in "[{" and self.at < self._tried:
            self._enter(first)
            return
        if first not in '[{"' and self._take_row():
            return
        window = self.text[self.at : self.at + WINDOW]
        is_rest = self.at + len(window) == len(self.text)
        try:
            value, end = _DECODER.raw_decode(window)
        except RecursionError:
            raise _too_deep() from None
        except ValueError as error:
            if is_rest or first not in '[{"':
                raise BadJson(str(error)) from None
            self._tried = self.at + len(window)
            if first == '"':
                self._begin_string(is_key=False)
            else:
                self._enter(first)
            return
        if end == len(window) and not is_rest and first not in '[{"tfn':
            raise BadJson("a number is too long")
        _check(value, window[:end], len(self._open))
        self._count(1 + window.count(",", 0, end))
        self.at += end
        self._put(value)

    def _take_row(self) -> bool:
        """Numbers and words in an array, as many at once as a window has. False: there are none."""
        inside = self._open[-1] if self._open else None
        found = _ROW.match(self.text, self.at, self.at + WINDOW) if isinstance(inside, list) else None
        if found is None or not isinstance(inside, list):
            return False
        try:
            values = _DECODER.decode(f"[{found[0][:-1]}]")
        except ValueError as error:
            raise BadJson(str(error)) from None
        self._count(len(values))
        inside += values
        self.at = found.end()
        return True

    def _count(self, values: int) -> None:
        self._left -= values
        if self._left < 0:
            raise BadJson(f"it has more than {self._values_max} values")

    def _skip(self) -> None:
        """White space."""
        end = self.at + WINDOW
        found = _SPACE.match(self.text, self.at, end)
        assert found is not None
        if found.end() == end:
            raise BadJson("there is too much white space")
        self.at = found.end()

    def _character(self) -> str:
        if self.at >= len(self.text):
            raise BadJson("the text ends too soon")
        return self.text[self.at]

    # -- Arrays and objects --------------------------------------------------------------------------------------

    def _enter(self, bracket: str) -> None:
        if len(self._open) >= DEPTH_MAX:
            raise _too_deep()
        self._count(1)
        self.at += 1
        self._skip()
        inner: list[Any] | dict[str, Any] = [] if bracket == "[" else {}
        if self._character() == ("]" if bracket == "[" else "}"):
            self.at += 1
            self._put(inner)
            return
        self._open.append(inner)
        self._keys.append("")
        if bracket == "{":
            self._begin_string(is_key=True)

    def _put(self, value: Any) -> None:
        """A value is complete: it belongs to what is open, which may be complete with it."""
        while self._open:
            inside = self._open[-1]
            if isinstance(inside, dict):
                inside[self._keys[-1]] = value
            else:
                inside.append(value)
            self._skip()
            following = self._character()
            self.at += 1
            if following == ",":
                if isinstance(inside, dict):
                    self._skip()
                    self._begin_string(is_key=True)
                return
            if following != ("}" if isinstance(inside, dict) else "]"):
                raise BadJson(f"a comma or an end is missing at character {self.at - 1}")
            value = self._open.pop()
            self._keys.pop()
        self.value = value
        self._skip()
        if self.at != len(self.text):
            raise BadJson("there is something behind the value")
        self.is_done = True

    # -- Strings -------------------------------------------------------------------------------------------------

    def _begin_string(self, is_key: bool) -> None:
        if self._character() != '"':
            raise BadJson(f"a name is missing at character {self.at}")
        self.at += 1
        self._string, self._is_key = [], is_key

    def _go_on_with_string(self) -> None:
        assert self._string is not None
        limit = self.at + CHUNK
        found = _CHARACTERS.match(self.text, self.at, limit)
        assert found is not None
        end = found.end()
        # Two escapes may be one character.
        tail = self.text[max(self.at, end - _ESCAPE_CHARACTERS) : end]
        if _HIGH.match(tail) and (low := _LOW.match(self.text, end)):
            end = low.end()
        chunk = self.text[self.at : end]
        try:
            part: str = _DECODER.decode(f'"{chunk}"')
        except ValueError as error:
            raise BadJson(str(error)) from None
        _check_halves(part, chunk)
        self._string.append(part)
        self.at = end
        if end < len(self.text) and self.text[end] == '"':
            self.at += 1
            self._on_string("".join(self._string))
        elif end < limit - _ESCAPE_CHARACTERS:
            raise BadJson(f"a string is bad or has no end, at character {end}")

    def _on_string(self, text: str) -> None:
        self._string = None
        if not self._is_key:
            self._count(1)
            self._put(text)
            return
        self._keys[-1] = text
        self._skip()
        if self._character() != ":":
            raise BadJson(f"a colon is missing at character {self.at}")
        self.at += 1


# -- What is refused -----------------------------------------------------------------------------------------------


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number")


def _finite(text: str) -> float:
    value = float(text)
    return value if isfinite(value) else _no_number(text)


_DECODER: Final = json.JSONDecoder(parse_constant=_no_number, parse_float=_finite)


def _check(value: Any, text: str, depth: int) -> None:
    """Check a value that was read from this text at some depth. Raises BadJson if it is nested too deeply."""
    _check_halves(value, text)
    if depth + text.count("[") + text.count("{") <= DEPTH_MAX:
        return
    level = [value]
    while level:
        inner: list[Any] = []
        for one in level:
            if isinstance(one, list):
                inner += one
            elif isinstance(one, dict):
                inner += one.values()
        depth += any(isinstance(one, list | dict) for one in level)
        if depth > DEPTH_MAX:
            raise _too_deep()
        level = inner


def _check_halves(value: Any, text: str) -> None:
    if "\\ud" in text or "\\uD" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise BadJson("half a character") from None


def _too_deep() -> BadJson:
    return BadJson(f"it is nested more than {DEPTH_MAX} levels deep")
