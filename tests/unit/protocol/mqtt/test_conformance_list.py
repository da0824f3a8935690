"""The list of what is shown by which test has every statement of the specifications, and names tests that exist."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
PLACES = {
    "codec": ["tests/unit/protocol/mqtt/test_codec.py"],
    "topics": ["tests/unit/protocol/mqtt/test_topics.py"],
    "clients": ["tests/system/mqtt/test_clients.py"],
    "web": ["tests/system/mqtt/test_web.py", "tests/unit/node/sockets/test_web_socket.py"],
    "": [
        f"tests/unit/sessions/mqtt/test_{name}.py"
        for name in ("connection", "sessions", "with_amqp", "statements", "exactly_once")
    ],
}
# How many statements the sections have; their numbers begin with 1, except those of 2.2.1 in MQTT 5.0.
OF_5 = {
    "1.5.4": 3, "1.5.5": 1, "1.5.7": 1, "2.1.3": 1, "2.2.1": 6, "2.2.2": 1, "3.1.0": 2, "3.1.2": 30, "3.1.3": 12,
    "3.1.4": 6, "3.2.0": 2, "3.2.2": 22, "3.3.1": 13, "3.3.2": 20, "3.3.4": 10, "3.4.2": 3, "3.5.2": 3, "3.6.1": 1,
    "3.6.2": 3, "3.7.2": 3, "3.8.1": 1, "3.8.3": 5, "3.8.4": 8, "3.9.2": 2, "3.9.3": 2, "3.10.1": 1, "3.10.3": 2,
    "3.10.4": 6, "3.11.2": 2, "3.11.3": 2, "3.12.4": 1, "3.14.0": 1, "3.14.1": 1, "3.14.2": 4, "3.14.4": 3,
    "3.15.1": 1, "3.15.2": 3, "4.1.0": 2, "4.2.0": 1, "4.3.1": 1, "4.3.2": 5, "4.3.3": 13, "4.4.0": 2, "4.5.0": 2,
    "4.6.0": 6, "4.7.0": 1, "4.7.1": 2, "4.7.2": 1, "4.7.3": 4, "4.8.2": 6, "4.9.0": 3, "4.12.0": 7, "4.12.1": 2,
    "4.13.1": 1, "4.13.2": 1, "6.0.0": 4,
}  # fmt: skip
OF_311 = {
    "1.5.3": 3, "2.2.2": 2, "2.3.1": 7, "3.1.0": 2, "3.1.2": 24, "3.1.3": 11, "3.1.4": 5, "3.2.0": 1, "3.2.2": 6,
    "3.3.1": 12, "3.3.2": 3, "3.3.4": 1, "3.3.5": 2, "3.6.1": 1, "3.8.1": 1, "3.8.3": 4, "3.8.4": 6, "3.9.3": 2,
    "3.10.1": 1, "3.10.3": 2, "3.10.4": 6, "3.12.4": 1, "3.14.1": 1, "3.14.4": 3, "4.1.0": 2, "4.2.0": 1, "4.3.1": 1,
    "4.3.2": 2, "4.3.3": 2, "4.4.0": 1, "4.5.0": 2, "4.6.0": 6, "4.7.1": 3, "4.7.2": 1, "4.7.3": 4, "4.8.0": 2,
    "6.0.0": 4,
}  # fmt: skip


def text() -> str:
    return (ROOT / "docs/mqtt-conformance.md").read_text()


def test_every_test_is_there() -> None:
    found = re.findall(r"(codec|topics|clients|web|) ?`(test_\w+)`", text())
    assert len(found) > 60
    for place, name in found:
        texts = [(ROOT / path).read_text() for path in PLACES[place]]
        assert any(f"def {name}(" in text for text in texts), (place, name)


@pytest.mark.parametrize(("title", "sections"), [("MQTT 5.0", OF_5), ("MQTT 3.1.1", OF_311)])
def test_every_statement_is_there_once(title: str, sections: dict[str, int]) -> None:
    part = text().split(f"## {title}\n")[1].split("\n## ")[0]
    found = Counter(re.findall(r"\b\d\.\d+\.\d+-\d+\b", part))
    wanted = {f"{section}-{number}" for section, count in sections.items() for number in range(1, count + 1)}
    assert set(found) == wanted - {"2.2.1-1"} if title == "MQTT 5.0" else set(found) == wanted
    assert [number for number, count in found.items() if count > 1] == []


def test_every_row_has_a_test() -> None:
    rows = [line.split("|") for line in text().splitlines() if re.match(r"\| \d", line)]
    assert len(rows) > 100 and all("`test_" in row[3] for row in rows)
