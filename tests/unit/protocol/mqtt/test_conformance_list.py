"""The list of what is shown by which test names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[4]
PLACES = {
    "codec": ["tests/unit/protocol/mqtt/test_codec.py"],
    "topics": ["tests/unit/protocol/mqtt/test_topics.py"],
    "clients": ["tests/system/mqtt/test_clients.py"],
    "web": ["tests/system/mqtt/test_web.py", "tests/unit/node/sockets/test_web_socket.py"],
    "": [f"tests/unit/sessions/mqtt/test_{name}.py" for name in ("connection", "sessions", "with_amqp")],
}


def test_every_test_is_there() -> None:
    found = re.findall(r"(codec|topics|clients|web|) ?`(test_\w+)`", (ROOT / "docs/mqtt-conformance.md").read_text())
    assert len(found) > 60
    for place, name in found:
        texts = [(ROOT / path).read_text() for path in PLACES[place]]
        assert any(f"def {name}(" in text for text in texts), (place, name)
