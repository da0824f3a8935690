"""STOMP frames to bytes and back, wherever the bytes are cut; bytes that are no frames, and what is said of them."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.protocol.stomp.decoder import Inbox, Incomplete, decode, skip, span_at
from leveret.protocol.stomp.encoder import encode
from leveret.protocol.stomp.frames import UNAUTHENTICATED, Frame, FrameLimits, Malformed

LIMITS = FrameLimits()
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
NAMES = TEXTS.filter(lambda name: name != "content-length")
COMMANDS = st.sampled_from(("SEND", "MESSAGE", "ERROR", "ACK", "RECEIPT"))
FRAMES = st.builds(Frame, COMMANDS, st.dictionaries(NAMES, TEXTS, max_size=5), st.binary(max_size=40))


def read_all(pieces: list[bytes], escapes: bool = True, limits: FrameLimits = LIMITS) -> list[Frame]:
    """The frames in bytes that come in pieces, as a connection reads them."""
    inbox, frames = Inbox(), []
    for piece in pieces:
        data, at = inbox.take(piece), 0
        while (at := skip(data, at)) < len(data):
            span = span_at(data, at, limits)
            if isinstance(span, Incomplete):
                inbox.keep_begun(data[at:], span, limits)
                break
            frames.append(decode(data, span, limits, escapes))
            at = span.last + 1
    return frames


def written(frame: Frame, escapes: bool = True) -> bytes:
    return encode(frame.command, frame.headers.items(), frame.body, escapes)


def without_length(frame: Frame) -> Frame:
    headers = {name: value for name, value in frame.headers.items() if name != "content-length"}
    return Frame(frame.command, headers, frame.body)


@given(st.lists(FRAMES, max_size=4), st.data())
def test_there_and_back_however_it_is_cut(frames: list[Frame], data: st.DataObject) -> None:
    whole = b"\n".join(map(written, frames))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    pieces = [whole[low:high] for low, high in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert list(map(without_length, read_all(pieces))) == frames


@given(FRAMES)
def test_every_single_cut(frame: Frame) -> None:
    whole = written(frame) + written(frame)
    for cut in range(len(whole) + 1):
        assert list(map(without_length, read_all([whole[:cut], whole[cut:]]))) == [frame, frame]


@given(FRAMES)
def test_byte_by_byte(frame: Frame) -> None:
    assert list(map(without_length, read_all([bytes((one,)) for one in written(frame)]))) == [frame]


@given(st.lists(st.binary(max_size=30), max_size=5), st.booleans())
def test_noise(pieces: list[bytes], escapes: bool) -> None:
    """Never anything but frames or `Malformed`."""
    try:
        read_all(pieces, escapes)
    except Malformed as error:
        assert str(error)


@given(st.lists(st.sampled_from((b"SEND\n", b"\n", b"\r\n", b"a:b\n", b"\0", b"content-length:", b"2", b"x", b"\\"))))
def test_noise_of_parts(pieces: list[bytes]) -> None:
    outcomes = []
    for cut in (pieces, [b"".join(pieces)]):
        try:
            outcomes.append(read_all(cut))
        except Malformed:
            outcomes.append([Frame("malformed")])
    # Cut or whole makes a difference only to how much is read before what is wrong is noticed.
    assert outcomes[0] == outcomes[1] or Frame("malformed") in outcomes[0] + outcomes[1]


@pytest.mark.parametrize(
    ("data", "frame"),
    [
        (b"SEND\ndestination:/queue/a\n\nhi\0", Frame("SEND", {"destination": "/queue/a"}, b"hi")),
        (b"SEND\r\na:b\r\n\r\nhi\0", Frame("SEND", {"a": "b"}, b"hi")),
        (b"SEND\r\na:b\n\r\nhi\0", Frame("SEND", {"a": "b"}, b"hi")),
        (b"\n\r\n\0\nSEND\na:1\na:2\n\n\0", Frame("SEND", {"a": "1"})),
        (b"SEND\ncontent-length:3\n\na\0b\0\n\n", Frame("SEND", {"content-length": "3"}, b"a\0b")),
        (b"SEND\ncontent-length: 3 \r\n\r\na\0b\0", Frame("SEND", {"content-length": " 3 "}, b"a\0b")),
        (b"SEND\ncontent-length:1\ncontent-length:9\n\na\0", Frame("SEND", {"content-length": "1"}, b"a")),
        (b"SEND\na:x\\c\\n\\\\\\r:y\n\n\0", Frame("SEND", {"a": "x:\n\\\r:y"})),
        (b"SEND\na\\cb:\n\n\0", Frame("SEND", {"a:b": ""})),
        (b"CONNECT\npasscode:a\\b\n\n\0", Frame("CONNECT", {"passcode": "a\\b"})),
        (b"SEND\n:x\n\n\0", Frame("SEND", {"": "x"})),
        (b"SEND\na:\xff\n\n\0", Frame("SEND", {"a": "\udcff"})),
        (b"DISCONNECT\n\n\0", Frame("DISCONNECT")),
    ],
)
def test_what_is_read(data: bytes, frame: Frame) -> None:
    assert read_all([data]) == [frame]


def test_stomp_1_0_has_no_escapes_and_trims_values() -> None:
    data = b"SEND\npath: C:\\new\n\n\0"
    span = span_at(data, 0, LIMITS)
    assert not isinstance(span, Incomplete)
    assert decode(data, span, LIMITS, False, True) == Frame("SEND", {"path": "C:\\new"})
    # Whatever the version, no value ends its line.
    assert encode("MESSAGE", [("a", "1\nb:\\2")], b"", False) == b"MESSAGE\na:1\\nb:\\2\n\n\0\n"
    assert encode("MESSAGE", [("a:b", "1")], b"", False) == b"MESSAGE\na\\cb:1\n\n\0\n"


def test_a_header_with_a_nul_is_not_written() -> None:
    assert encode("MESSAGE", [("a", "1\0"), ("b", "2")], b"x\0y") == b"MESSAGE\nb:2\ncontent-length:3\n\nx\0y\0\n"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"SEND\nnocolon\n\n\0", "without a colon"),
        (b"SEND\na:\\t\n\n\0", "undefined escape"),
        (b"SEND\na:\\\n\n\0", "undefined escape"),
        (b"SEND\na:b\rc\n\n\0", "carriage return"),
        (b"SEND\na:\0b\n\n\0", "NUL in the headers"),
        (b"SEND\0", "NUL in the headers"),
        (b"SEND\ncontent-length:x\n\n\0", "no number"),
        (b"SEND\ncontent-length:-1\n\n\0", "no number"),
        (b"SEND\ncontent-length:\n\n\0", "no number"),
        (b"SEND\ncontent-length:1\n\nhi\0", "no NUL behind 1 bytes"),
        (b"SEND\ncontent-length:9999999\n\n", "more than 4194304 bytes"),
        (b"SEND\ncontent-length:" + b"9" * 5_000, "no number|not whole"),
        (b"X" * 100, "a command has more"),
        (b"X" * 100 + b"\n\n\0", "a command has more"),
        (b"SEND\n" + b"a:b\n" * 600 + b"\n\0", "more than 512 headers"),
        (b"SEND\na:" + b"b" * 70_000 + b"\n\n\0", "a header has more"),
        (b"SEND\n" + b"a:bbbbbbbbb\n" * 30_000, "the headers of a frame have more"),
        (b"SEND\n\n" + b"a" * 4_200_000, "more than 4194304 bytes"),
    ],
)
def test_what_is_refused(data: bytes, text: str) -> None:
    try:
        frames = read_all([data])
    except Malformed as error:
        assert text.split("|", maxsplit=1)[0] in str(error)
    else:
        assert frames == [] and "not whole" in text


def test_limits_before_login() -> None:
    with pytest.raises(Malformed, match="more than 65536 bytes"):
        read_all([b"CONNECT\ncontent-length:70000\n\n"], limits=UNAUTHENTICATED)
    with pytest.raises(Malformed, match="headers of a frame have more than 16384"):
        read_all([b"CONNECT\n" + b"a:b\n" * 5_000], limits=UNAUTHENTICATED)


@pytest.mark.parametrize("body", [b"content-length:1000000\n\n", b"\n"])
def test_a_large_frame_in_many_pieces_takes_linear_time(body: bytes) -> None:
    head = b"SEND\n" + body
    pieces = [head, *[b"x" * 10] * 100_000, b"\0"]
    started = time.process_time()
    (frame,) = read_all(pieces)
    assert len(frame.body) == 1_000_000
    assert time.process_time() - started < 2  # It takes some 50 ms; joined anew for each piece, more than a minute.
