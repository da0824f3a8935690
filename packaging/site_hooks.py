"""Hooks of the static site: links from the pages to files of the repository outside docs/.

The pages are read in two places, in the repository and on the site. Links that lead out of docs/ (to README.md, say)
work in the first; on the site they become the file's name, since the site does not know where the repository is.
"""

from __future__ import annotations

import re
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?:README|CHANGELOG|SECURITY|CONTRIBUTING)\.md(?:#[\w-]+)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs for each page."""
    return _OUTSIDE.sub(r"\1", markdown)
