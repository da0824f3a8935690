"""Puts results into a page of the documentation, between two marks."""

from __future__ import annotations

MARK, END_MARK = "<!-- results -->", "<!-- end of results -->"


def insert(page: str, text: str) -> str:
    """Returns the page with `text` between its marks."""
    before, _, rest = page.partition(MARK)
    _, mark, after = rest.partition(END_MARK)
    if not mark:
        raise ValueError(f"the page has no {MARK} … {END_MARK}")
    return f"{before}{MARK}\n\n{text}\n{END_MARK}{after}"
