"""Calls at the cluster port that make no sense cost nobody but who sent them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from leveret.links.frame_types import CONTROL, HELLO, JOIN, LEAVE, RENAME
from leveret.links.link import Identity
from leveret.node.sockets.peer_socket import call
from tests.support.members import COOKIE, Member

NESTED = b"[" * 100_000


def test_calls_that_make_no_sense_are_answered(tmp_path: Path) -> None:
    node = Member(tmp_path / "one", "one@localhost", "")
    node.start()

    def ask(kind: int, payload: bytes) -> bytes:
        me = Identity("tests", b"t" * 16)
        return asyncio.run(call(("127.0.0.1", node.cluster_port), kind, payload, 30.0, me, COOKIE.encode()))

    for payload in (NESTED, b"[]", b"7", b'{"name": [], "uuid": {}, "address": 5, "priority": "x"}'):
        assert json.loads(ask(HELLO, payload))["name"] == "one@localhost"
        for kind in (JOIN, LEAVE, RENAME):
            assert isinstance(json.loads(ask(kind, payload)), dict)
        assert "error" in json.loads(ask(CONTROL, payload))
    node.stop()
    assert "Traceback" not in node.log()
