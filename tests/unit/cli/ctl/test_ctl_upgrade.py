"""`leveretctl rolling_restart`, where no nodes are needed. `tests/system/clusters/test_maintenance.py` has some."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.cli.ctl.base.command import Failed, Given
from leveret.cli.ctl.nodes import maintenance


def test_whoever_interrupts_it_is_told_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def restart(rolling: maintenance.Rolling, name: str) -> None:
        if name == "two@b":
            raise KeyboardInterrupt

    monkeypatch.setattr(maintenance.Rolling, "__init__", lambda self, session, given: setattr(self, "sync", False))
    monkeypatch.setattr(maintenance.Rolling, "begin", lambda self: ["one@a", "two@b", "three@c"])
    monkeypatch.setattr(maintenance.Rolling, "problem", lambda self, name, wait: None)
    monkeypatch.setattr(maintenance.Rolling, "restart", restart)
    monkeypatch.setattr(maintenance.Rolling, "close", lambda self: None)
    session: Any = SimpleNamespace(banner=lambda text, now: None, say=lambda text: None)
    with pytest.raises(Failed) as caught:
        maintenance.rolling_restart(cast("Any", session), Given([], {"rebalance": True}))
    assert caught.value.code == 130
    assert caught.value.text.startswith("interrupted at node two@b: ")
    again = "leveretctl rolling_restart --nodes two@b,three@c --rebalance"
    assert caught.value.text.endswith(f"Stopped. The other nodes are as they were. Continue with: {again}")
