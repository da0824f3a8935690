"""Nobody who attacks a node makes others wait: the short form, each attack once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.attacks.attacks import ATTACKS
from tests.system.attacks.running import Stage


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder: Path = tmp_path_factory.mktemp("attacked")
    with Stage(folder) as stage:
        yield stage


@pytest.mark.parametrize("name", ATTACKS)
def test_attack(stage: Stage, name: str) -> None:
    stage.attack(name, 1)
