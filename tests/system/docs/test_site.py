"""`make docs` makes a site of the pages, without broken links."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.servers import ROOT


def test_the_site(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "tutorials" / "first-message" / "index.html").exists()
    assert (tmp_path / "reference" / "openapi.json").exists()
