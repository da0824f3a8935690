"""Every conversation once more, with the queues at another node than the clients: the answers are the same."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.brokers import Cluster
from tests.machines import Conversation, converse, written_conversations

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


@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_clients_at_two_nodes_in_turn(conversation: Conversation) -> None:
    cluster = Cluster("a", "b", home="b")
    assert converse(conversation, cluster["a"], cluster["b"]) == conversation.lines
    cluster.finish()
