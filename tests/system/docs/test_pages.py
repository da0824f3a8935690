"""The commands and the code of README and docs do what their pages say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pages.blocks import ROOT, blocks, pages
from tests.support.pages.run import in_namespaces, why_not

PAGE_S = 240.0
RUNNABLE = [page for page in pages() if any(block.is_run for block in blocks(page))]


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page(page: Path) -> None:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    done = in_namespaces(page, PAGE_S)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
