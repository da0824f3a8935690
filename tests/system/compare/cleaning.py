"""What a conversation left in its vhost is deleted before the next one."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from threading import Event
from typing import Final

from leveret.protocol import methods as m
from tests.support.machines import ALL_CAPABILITIES, Conversation, hello
from tests.system.compare.session import ANSWER_S, Peer, Target

DELETED_S: Final = 10.0
PAUSE_S: Final = 0.05
RESOURCE_LOCKED: Final = 405
_NAMED: Final = re.compile(r"(queue|exchange|destination)='([^']+)'")


class Cleaner:
    """For one vhost; its connection serves one conversation after the other."""

    def __init__(self, target: Target, vhost: str) -> None:
        self.target = target
        self.vhost = vhost
        self.peer: Peer | None = None

    def clean(self, conversation: Conversation, made_up: Iterable[str]) -> None:
        """Whatever is named in it: deleting what is not there is no mistake."""
        found = {(kind, name) for line in conversation.lines for kind, name in _NAMED.findall(line)}
        queues = {name for kind, name in found if kind == "queue"} | {name for name in made_up if "gen" in name}
        exchanges = {name for kind, name in found if kind != "queue" and not name.startswith("amq.")}
        todo: list[m.QueueDelete | m.ExchangeDelete] = [m.QueueDelete(queue=name) for name in sorted(queues)]
        todo += [m.ExchangeDelete(exchange=name) for name in sorted(exchanges)]
        deadline = time.monotonic() + DELETED_S
        for method in todo:
            while self._call(method) == RESOURCE_LOCKED:  # By one who is going, and not gone yet.
                assert time.monotonic() < deadline, f"{conversation.title}: cannot be deleted: {method}"
                Event().wait(PAUSE_S)

    def _call(self, method: m.Method) -> int:
        """The code with which it was refused, or 0."""
        if self.peer is None:
            self.peer = Peer(self.target.port)
            self.peer.send(hello("guest", "guest", self.vhost, ALL_CAPABILITIES, 131_072, 2047, 0, (1,)))
            self._replies(4)
        self.peer.send(m.encode(1, method))
        (answer,) = self._replies(1)
        if not isinstance(answer, m.ChannelClose):
            return 0
        self.peer.send(m.encode(1, m.ChannelCloseOk()) + m.encode(1, m.ChannelOpen()))
        self._replies(1)
        return answer.reply_code

    def _replies(self, count: int) -> list[m.Method | None]:
        peer = self.peer
        assert peer is not None
        deadline = time.monotonic() + ANSWER_S
        while len(peer.replies) < count:
            assert not peer.ended and time.monotonic() < deadline, (
                f"vhost {self.vhost} cannot be cleaned: {peer.replies}"
            )
            peer.read()
        taken, peer.replies = peer.replies, []
        return [each.method for each in taken]

    def close(self) -> None:
        if self.peer is not None:
            self.peer.socket.close()
