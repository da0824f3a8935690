"""Every conversation once more, with the queues at another node than the clients: the answers are the same."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.support.brokers import Cluster
from tests.support.machines import Conversation, converse, written_conversations

FILES: Final = (
    "connection", "consumers", "contents", "exchanges", "handshake", "one-write", "queues", "replies", "routes",
    "transactions",
)  # fmt: skip
CONVERSATIONS: Final[list[Any]] = [each for name in FILES for each in written_conversations(name)]


@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_all_clients_at_one_node_and_all_queues_at_another(conversation: Conversation) -> None:
    cluster = Cluster("a", "b", home="b")
    assert converse(conversation, cluster["a"]) == conversation.lines
    cluster.finish()

# A command takes no time here, so the end of a queue overtakes what is under way from it to a consumer's node.
OVERTAKEN: Final = frozenset(
    {"a consumer waits: publish and delete", "a consumer waits: publish and delete if it is empty"}
)


@pytest.mark.parametrize("conversation", [each for each in CONVERSATIONS if each.id not in OVERTAKEN])
def test_clients_at_two_nodes_in_turn(conversation: Conversation) -> None:
    cluster = Cluster("a", "b", home="b")
    assert converse(conversation, cluster["a"], cluster["b"]) == conversation.lines
    cluster.finish()
