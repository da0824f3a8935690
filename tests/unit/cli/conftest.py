from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A node must not be steered by what happens to be set where the tests run."""
    for name in list(os.environ):
        if name.startswith(("LEVERET_", "RABBITMQ_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
