"""The machine answers as RabbitMQ's plugin did, or otherwise for a reason: see `recorded`."""

from __future__ import annotations

import pytest

from tests.support.machines import World
from tests.unit.sessions.stomp import recorded as r
from tests.unit.sessions.stomp.clients import StompClient

CONVERSATIONS = r.read(r.FILE.read_text())


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda one: one.title)
def test_conversation(conversation: r.Conversation) -> None:
    client, is_over = StompClient(World()), False
    for step in conversation.steps:
        if is_over:
            return
        client.connection.receive(r.to_bytes(step.said, client.connection.session_id))
        answer = client.heard_bytes()
        is_over = client.connection.closed
        lines = r.to_lines(answer, client.connection.session_id, is_over)
        wanted = step.ours if step.reason else step.answered
        assert r.frames_of(lines) == r.frames_of(wanted), step.said
        assert not step.reason or r.frames_of(wanted) != r.frames_of(step.answered), "it does not differ any more"
