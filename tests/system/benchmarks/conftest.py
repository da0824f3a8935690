"""Benchmarks whose nodes are forked: here they need to run, and no figure counts."""

from __future__ import annotations

from typing import IO, Any

import pytest

from benchmarks.ruler.brokers import Leveret
from tests.support.processes.forked import can_fork, fork


@pytest.fixture(autouse=True)
def quick_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Leveret.launch

    def launch(node: Leveret, command: list[str], output: IO[bytes]) -> Any:
        if not can_fork(command, {}):
            return usual(node, command, output)
        return fork(command, node.environment(), output, all_to_log=True, own_group=True)

    monkeypatch.setattr(Leveret, "launch", launch)
