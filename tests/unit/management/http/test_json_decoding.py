"""JSON that is read in pieces is the JSON that Python reads at once, or it is refused."""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import Any

import pytest

from leveret.management.http import json_decoding
from leveret.management.http.json_decoding import (
    CHUNK,
    DEPTH_MAX,
    VALUES_MAX,
    WINDOW,
    BadJson,
    _Reader,
    decoded,
    loaded,
)

TEXTS = ("", "x", "grün", 'a"b\\c\n', "\U0001f407", "\udcff", "y" * 300, "z" * (WINDOW + 1), 'é\\"' * WINDOW)


def read(data: bytes, values_max: int = 10**9) -> Any:
    return asyncio.run(decoded(data, values_max))


def value(random: Random, depth: int) -> Any:
    kind = random.random()
    if depth > 3 or kind < 0.3:
        numbers = (0, -17, 1.5e300, 2**63, True, False, None)
        return random.choice(TEXTS) if random.random() < 0.2 else random.choice(numbers)
    count = random.choice((0, 1, 3, 12))
    if kind < 0.6:
        return [value(random, depth + 1) for _ in range(count)]
    return {f"{random.choice(TEXTS[:7])}{number}": value(random, depth + 1) for number in range(count)}


@pytest.mark.parametrize("seed", range(8))
def test_the_same_as_at_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    made = [value(random, 0) for _ in range(5)]
    for size in (WINDOW, 64, 32):
        monkeypatch.setattr(json_decoding, "WINDOW", size)
        monkeypatch.setattr(json_decoding, "CHUNK", 8 * size)
        for options in ({}, {"indent": 3}, {"separators": (",", ":")}):
            text = json.dumps(made, **options)
            assert read(text.encode()) == made
        assert read(json.dumps(made).encode("utf-16")) == made


@pytest.mark.parametrize("seed", range(6))
def test_what_python_refuses_is_refused(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small window, so that all of it is read in pieces; and documents with a mistake."""
    random = Random(seed)
    whole = json.dumps([value(random, 1) for _ in range(3)])[:4000].encode()
    for _ in range(200):
        data = bytearray(whole)
        for _ in range(random.choice((1, 1, 2, 5))):
            at = random.randrange(len(data))
            data[at : at + random.randrange(3)] = random.choice((b"", b'"', b"]", b"}", b",", b":", b"1", b"\\", b"[{"))
        found = []
        for size in (WINDOW, 32):
            monkeypatch.setattr(json_decoding, "WINDOW", size)
            try:
                found.append(read(bytes(data)))
            except BadJson:
                found.append(BadJson)
        assert found[0] == found[1], bytes(data)


BIG = b" " * 10 + b'"' + b"x" * WINDOW + b'",'


@pytest.mark.parametrize(
    "text",
    [
        b"NaN", b"-Infinity", b"1e999", b'"\\ud800"', b'"\xed\xa0\x80"', b'"\xff"', b"", b"[", b"[1,]", b'{"a"}',
        b'{"a":}', b"{1:2}", b"[1] 2", b'"a', b'"\\x"', b'"\n"', b"1" * 5_000, b" " * (2 * WINDOW) + b"1", b"[1 2]",
        b'{"a" 1}', b"]",
    ],
)  # fmt: skip
def test_bad_ones(text: bytes) -> None:
    for data in (text, b"[" + BIG + text + b"]"):
        with pytest.raises(BadJson):
            read(data)


def test_two_escapes_are_one_character_wherever_a_chunk_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_decoding, "WINDOW", 16)
    for size in range(8, 30):
        monkeypatch.setattr(json_decoding, "CHUNK", size)
        for text in ("ab\U0001f407" * 20, "\\ud83d" * 20, "\\" * 50 + "\U0001f407"):
            assert read(json.dumps([text]).encode()) == [text]


@pytest.mark.parametrize("before", [b"", BIG])
def test_nesting_is_bounded(before: bytes) -> None:
    def nested(levels: int) -> bytes:
        inner = b'{"a":[' * (levels // 2) + b"]}" * (levels // 2)
        return b"[" + before + inner + b"]"

    assert read(nested(DEPTH_MAX - 2))
    for levels in (DEPTH_MAX + 2, 2_000, 200_000):
        with pytest.raises(BadJson, match=r"levels deep|recursion"):
            read(nested(levels))


def test_values_are_bounded() -> None:
    assert len(read(b"[" + b"0," * 9_000 + b"0]", VALUES_MAX)) == 9_001
    for one in (b"0,", b"[],", b'{"a":0},', b'"",', b"[0,0],"):
        with pytest.raises(BadJson, match="more than 100000 values"):
            read(b"[" + one * VALUES_MAX + b"0]", VALUES_MAX)


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 60 + b"0," * 20_000 + b"0" + b"]" * 60,
        b"[" + b",".join([b"[" * 50 + b"0," * WINDOW + b"0" + b"]" * 50] * 5) + b"]",
        b'{"' + b"k" * 200_000 + b'":"' + b"\\u00e9" * 100_000 + b'"}',
        json.dumps([{"name": f"q{number}", "arguments": {"a": [1, 2]}} for number in range(3_000)]).encode(),
    ],
)
def test_a_step_is_short(data: bytes) -> None:
    """However a document is made, a step takes in few characters, and there are not many more steps than values."""
    reader, steps = _Reader(data.decode(), 10**9), 0
    while not reader.is_done:
        at = reader.at
        reader.step()
        steps += 1
        assert reader.at - at <= CHUNK + WINDOW
    assert steps <= data.count(b",") + data.count(b"[") + len(data) // CHUNK + 10
    assert reader.value == json.loads(data)


def test_a_short_document_is_read_at_once() -> None:
    assert loaded(b'{"a": [1, "\xc3\xa9"]}') == {"a": [1, "é"]}
    assert loaded(b'"\\udcff"') == "\udcff"  # A byte of a name that is no UTF-8.
