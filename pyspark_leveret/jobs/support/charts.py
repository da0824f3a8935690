"""Charts over time as inline SVG: lines, and marks where something happened. No script, no fonts, no network.

Colours come from the page's style sheet (`STYLE`), so that a chart is right on light and on dark ground. Every value
can be read off: axes have round ticks, lines have their name in a legend, marks their number, and their text as a
tooltip. Numbers that stand too close together are one label.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final, NamedTuple

WIDTH: Final = 960
HEIGHT: Final = 260
LEFT: Final = 64
RIGHT: Final = 16
TOP: Final = 28
BOTTOM: Final = 30
TICKS: Final = 4
DIGIT: Final = 7.0  # The width of one, in bold.
LABEL_GAP: Final = 5.0  # At least between two labels of marks.

Scale = Callable[[float], float]

STYLE: Final = """
:root { color-scheme: light dark; --ground: #fbfaf7; --text: #23211c; --dim: #6d6a60; --rule: #dcd8cd;
  --c1: #2a6f97; --c2: #b5651d; --c3: #5b8c3e; --bad: #b3261e; --good: #2f7d4f; }
@media (prefers-color-scheme: dark) { :root { --ground: #1a1b1e; --text: #e8e6df; --dim: #9b988e; --rule: #3a3b3f;
  --c1: #74b3d8; --c2: #e0a063; --c3: #9fcc80; --bad: #f2857c; --good: #7fcf9f; } }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--dim); font: 11px system-ui, sans-serif; }
svg .rule { stroke: var(--rule); }
svg .line { fill: none; stroke-width: 1.6; stroke-linejoin: round; stroke-linecap: round; }
svg .mark { stroke: var(--bad); stroke-dasharray: 3 3; } svg .number { fill: var(--bad); font-weight: 600; }
svg .s0 { stroke: var(--c1); } svg .s1 { stroke: var(--c2); } svg .s2 { stroke: var(--c3); }
svg .k0 { fill: var(--c1); } svg .k1 { fill: var(--c2); } svg .k2 { fill: var(--c3); }
"""


class Line(NamedTuple):
    name: str
    points: Sequence[tuple[int, float | None]]  # (ms since 1970, value); None: no value, the line is broken


class Mark(NamedTuple):
    at_ms: int
    number: str
    text: str


def chart(title: str, unit: str, lines: Sequence[Line], marks: Sequence[Mark], begin_ms: int, end_ms: int) -> str:
    """Draws at most three lines on one axis that begins at 0."""
    end_ms = max(end_ms, begin_ms + 1)
    highest = max((value for line in lines for _, value in line.points if value is not None), default=0.0)
    step = tick(highest)
    top = step * max(1, math.ceil(highest / step))

    def x(ms: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (min(max(ms, begin_ms), end_ms) - begin_ms) / (end_ms - begin_ms)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">']
    for index in range(round(top / step) + 1):
        at = y(step * index)
        parts.append(f'<line class="rule" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{short(step * index)}</text>')
    parts += _times(begin_ms, end_ms, x)
    parts += _legend(unit, lines)
    parts += [_path(index, line, x, y) for index, line in enumerate(lines)]
    parts += _marks(marks, x)
    return "".join([*parts, "</svg>"])


def _marks(marks: Sequence[Mark], x: Scale) -> list[str]:
    """Draws marks. Numbers that would overprint each other become one label, such as 3-7, whose tooltip has all texts;
    it stands left of its line where there is no room to the right."""
    parts, groups = [], list[list[Mark]]()
    for mark in sorted(marks, key=lambda one: one.at_ms):
        at = x(mark.at_ms)
        parts.append(f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        if groups and at < x(groups[-1][0].at_ms) + _width([*groups[-1], mark]) + LABEL_GAP:
            groups[-1].append(mark)
        else:
            groups.append([mark])
    for group in groups:
        at, width = x(group[0].at_ms) + 3, _width(group)
        at = min(at, WIDTH - RIGHT - width)
        texts = group[0].text if len(group) == 1 else "\n".join(f"{mark.number}: {mark.text}" for mark in group)
        parts.append(
            f'<g><title>{escape(texts)}</title><text class="number" x="{at:.1f}" y="{TOP + 10}">'
            f"{escape(_label(group))}</text></g>"
        )
    return parts


def _label(group: Sequence[Mark]) -> str:
    return group[0].number if len(group) == 1 else f"{group[0].number}-{group[-1].number}"


def _width(group: Sequence[Mark]) -> float:
    return DIGIT * len(_label(group))


def _times(begin_ms: int, end_ms: int, x: Scale) -> list[str]:
    spread = end_ms - begin_ms
    form = "%H:%M:%S" if spread < 6 * 3_600_000 else "%d. %H:%M" if spread < 20 * 86_400_000 else "%Y-%m-%d"
    parts = []
    for index in range(6):
        ms = begin_ms + spread * index / 5
        anchor = "start" if index == 0 else "end" if index == 5 else "middle"
        when = datetime.fromtimestamp(ms / 1000, UTC).strftime(form)
        parts.append(f'<text x="{x(ms):.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">{when}</text>')
    return parts


def _legend(unit: str, lines: Sequence[Line]) -> list[str]:
    parts, at = [f'<text x="{LEFT}" y="14">{escape(unit)}</text>'], WIDTH - RIGHT
    for index, line in reversed(list(enumerate(lines))):
        at -= 7 * len(line.name) + 24
        parts.append(f'<rect class="k{index}" x="{at}" y="6" width="10" height="10" rx="2"/>')
        parts.append(f'<text x="{at + 14}" y="15">{escape(line.name)}</text>')
    return parts


def _path(index: int, line: Line, x: Scale, y: Scale) -> str:
    words, is_open = [], False
    for at_ms, value in line.points:
        if value is None:
            is_open = False
            continue
        # A single point is drawn as a line of no length: a dot.
        words.append(f"{'L' if is_open else 'M'}{x(at_ms):.1f} {y(value):.1f}{'' if is_open else 'h0'}")
        is_open = True
    return f'<path class="line s{index}" d="{" ".join(words)}"/>'


def tick(highest: float) -> float:
    """Returns a round step that fits into `highest` about `TICKS` times."""
    if highest <= 0:
        return 1.0
    rough = highest / TICKS
    power = 10 ** math.floor(math.log10(rough))
    return float(next(power * times for times in (1, 2, 5, 10) if power * times >= rough * 0.999))


def short(value: float) -> str:
    """Returns a number for an axis: 12000 as 12k."""
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:g}{letter}"
    return f"{value:g}"
