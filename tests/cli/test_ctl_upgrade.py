"""`leveretctl rolling_restart`, where no nodes are needed; real ones are in `tests/clusters/test_maintenance.py`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.cli.ctl import upgrade
from leveret.cli.ctl.frame import Failed, Given


def test_whoever_interrupts_it_is_told_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def restart(rolling: upgrade.Rolling, name: str) -> None:
        if name == "two@b":
            raise KeyboardInterrupt

    monkeypatch.setattr(upgrade.Rolling, "__init__", lambda self, session, given: setattr(self, "sync", False))
    monkeypatch.setattr(upgrade.Rolling, "begin", lambda self: ["one@a", "two@b", "three@c"])
    monkeypatch.setattr(upgrade.Rolling, "problem", lambda self, name, wait: None)
    monkeypatch.setattr(upgrade.Rolling, "restart", restart)
    monkeypatch.setattr(upgrade.Rolling, "close", lambda self: None)
    session: Any = SimpleNamespace(banner=lambda text, now: None, say=lambda text: None)
    with pytest.raises(Failed) as caught:
        upgrade.rolling_restart(cast("Any", session), Given([], {"rebalance": True}))
    assert caught.value.code == 130
    assert caught.value.text.startswith("interrupted at node two@b: ")
    again = "leveretctl rolling_restart --nodes two@b,three@c --rebalance"
    assert caught.value.text.endswith(f"Stopped. The other nodes are as they were. Go on with: {again}")
