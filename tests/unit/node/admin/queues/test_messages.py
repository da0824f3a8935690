"""Finding and deleting messages that wait by a text that they contain, in memory or in the log only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest

import leveret.testing
from leveret.testing import Broker

FRAME_MAX = 4096
IN_A_FRAME = FRAME_MAX - 8
HEADERS = {
    "colour": "teal", "nested": {"deep": ["reed", {"size": 4711}]}, "raw": b"\xffmoss", "count": -27, "exact": True
}  # fmt: skip


@pytest.fixture(scope="module", params=["", "content_cache_bytes = 0"], ids=["in memory", "in the log"])
def node(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with leveret.testing.broker(config=request.param) as node:
        yield node


@pytest.fixture(params=[{}, {"x-max-priority": 3}], ids=["plain", "with priorities"])
def channel(node: Broker, request: pytest.FixtureRequest) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(f"{node.url}?frame_max={FRAME_MAX}"))
    channel = connection.channel()
    channel.queue_declare("q", durable=True, arguments=request.param)
    channel.confirm_delivery()
    yield channel
    channel.queue_delete("q")
    connection.close()


def publish(channel: Any, body: bytes, **properties: Any) -> None:
    channel.basic_publish("", "q", body, pika.BasicProperties(delivery_mode=2, **properties))


def found(node: Broker, text: str) -> list[int]:
    """Returns the places of the messages that contain a text."""
    asked = {"vhost": "/", "name": "q", "text": text, "cursor": None, "count": 50, "bytes_max": 0}
    answer = node.admin.call("search_messages", **asked)
    assert answer["cursor"] is None or len(answer["messages"]) == 50
    return [one["position"] for one in answer["messages"]]


def test_a_text_that_is_split_between_frames_is_found(node: Broker, channel: Any) -> None:
    needle = "a needle with ‹é›".encode()
    for split in range(len(needle) + 1):
        publish(channel, b"x" * (IN_A_FRAME - split) + needle + b"y" * split)
        publish(channel, b"z" * 3 * IN_A_FRAME)
    assert found(node, needle.decode()) == list(range(1, 2 * len(needle) + 3, 2))
    answer = node.admin.call("delete_matching", vhost="/", name="q", text=needle.decode(), cursor=None)
    assert answer["deleted"] == len(needle) + 1
    assert found(node, needle.decode()) == []
    assert found(node, "zzz") == list(range(1, len(needle) + 2))


def test_properties_and_headers_are_searched_by_their_texts(node: Broker, channel: Any) -> None:
    publish(channel, b"", headers=HEADERS, content_type="text/plain", message_id="id-1", priority=2)
    publish(channel, b"")
    for text in ("colour", "tea", "deep", "reed", "4711", "moss", "-27", "text/pl", "id-1"):
        assert found(node, text) == [1], text
    assert found(node, "q") == [1, 2]  # The routing key.


@pytest.mark.parametrize("text", ["S", "F", "tealS", "\x04teal", "\x00", "\x03\x00\x01", "2", "True", "‹"])
def test_bytes_between_the_texts_are_no_match(node: Broker, channel: Any, text: str) -> None:
    publish(channel, b"x" * 2 * IN_A_FRAME, headers={"colour": "teal"}, priority=2)
    assert found(node, text) == []


@pytest.mark.parametrize("command", ["search_messages", "delete_matching"])
@pytest.mark.parametrize("text", ["", "x" * 1_001, "\ud800"], ids=["empty", "long", "half a character"])
def test_a_text_that_cannot_be_looked_for(node: Broker, channel: Any, command: str, text: str) -> None:
    more = {"count": 1, "bytes_max": 0} if command == "search_messages" else {}
    with pytest.raises(leveret.testing.AdminError, match="out of bounds"):
        node.admin.call(command, vhost="/", name="q", text=text, cursor=None, **more)
