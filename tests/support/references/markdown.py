"""Markdown that the references are made of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

NOTE: Final = "*Made from the code by `make references`; do not edit.*"


def page(title: str, about: str, *parts: str) -> str:
    return "\n\n".join((f"# {title}", about, NOTE, *(part.rstrip() for part in parts))) + "\n"


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(map(_cell, row))} |" for row in rows)])


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def _cell(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|")
