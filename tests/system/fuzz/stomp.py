"""Mutated conversations with the machine of a STOMP connection.

Whatever comes, `receive` raises nothing. Afterwards the connection runs, or is closed; what it holds of the input is
bounded; what it answered a strict client can read. When it is gone, nothing of it is left in the broker.

Each input is fed twice, whole and in pieces, and must be answered the same: a SEND that looks like the one before takes
another way through the machine than one that comes in pieces, so this compares the two ways.
"""

from __future__ import annotations

import re
from typing import Final

from leveret.protocol.stomp.frames import FrameLimits
from leveret.sessions.stomp.limits import StompLimits
from tests.support.machines import World
from tests.system.fuzz.fuzzer import Target
from tests.unit.sessions.stomp.clients import StompClient

LIMITS: Final = StompLimits(
    before_login=FrameLimits(1_024, 512, 256, 16), after_login=FrameLimits(2_048, 1_024, 512, 32)
)
PIECES: Final = (1, 2, 3, 7, 11, 50)
_SESSION: Final = re.compile(r"(?:session|amq\.gen|stomp-subscription)-[\w-]+")


class Ended(Exception):
    """The machine ended the connection, as it should."""


def run_stomp(data: bytes) -> None:
    """From the first byte on, or after the login as a client of one version or another."""
    _run(data, "" if data.startswith((b"CONNECT", b"STOMP")) else "1.0" if len(data) % 4 == 0 else "1.2")


def _run(data: bytes, version: str) -> None:
    outcomes = []
    for size in (1 << 20, PIECES[len(data) % len(PIECES)]):
        world = World()
        client = StompClient(world, LIMITS)
        if version:
            client.connect(version)
            client.ask("SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client-individual\n\n^@")
            client.ask("SEND\ndestination:/queue/q\nreceipt:0\n\nx^@" * 3)
        connection = client.connection
        sent = data.replace(b"@@x@@", f"@@{connection.session_id}@@".encode())
        for at in range(0, len(sent), size):
            connection.receive(sent[at : at + size])
            limit = 2 * connection.frame_limits.frame_bytes_max
            assert len(connection.inbox.kept) <= limit + len(sent[at : at + size]), "the input piles up"
            assert not connection.publisher.contents and not connection.deliveries.acked, "something was left behind"
        heard = client.frames()
        waiting = {name: world.queue(name).ready_count for name in world.broker.vhosts["/"].queues}
        commands = sorted(
            (one.command, _SESSION.sub("X", str(sorted(one.headers.items()))), one.body) for one in heard
        )
        outcomes.append((connection.closed, commands, waiting if not connection.closed else None))
        closed = connection.closed
        assert not closed or not heard or heard[-1].command in ("ERROR", "RECEIPT", "MESSAGE", "CONNECTED")
        client.lose()
        assert connection.closed and connection not in world.broker.connections
        assert all(one.client is not connection for one in world.broker.sessions)
        for name in world.broker.vhosts["/"].queues:
            assert not world.queue(name).consumers and not world.queue(name).unacked_count
    if not outcomes[0][0] and not outcomes[1][0]:
        assert outcomes[0] == outcomes[1], "the pieces were answered otherwise"
    if closed:
        raise Ended


def _frame(text: str) -> bytes:
    return text.replace("^@", "\0").encode()


_CONNECTS: Final = [
    _frame("CONNECT\naccept-version:1.0,1.1,1.2\nhost:/\nlogin:guest\npasscode:guest\nheart-beat:1000,1000\n\n^@"),
    _frame("STOMP\r\naccept-version:1.2\r\nlogin:guest\r\npasscode:guest\r\n\r\n^@\n"),
    _frame("CONNECT\n\n^@SEND\ndestination:/queue/q\n\nx^@"),
]
_FRAMES: Final = [
    _frame("SEND\ndestination:/queue/q\nreceipt:1\n\nhello^@" * 3),
    _frame("SEND\ncontent-length:5\ndestination:/topic/a.b\npersistent:true\nreceipt:r1\nx:a\\cb\n\nhe^@lo^@\n" * 2),
    _frame("SUBSCRIBE\nid:2\ndestination:/topic/a.#\nack:client\nprefetch-count:2\nreceipt:s\n\n^@"),
    _frame("UNSUBSCRIBE\nid:1\nreceipt:u\n\n^@"),
    _frame("ACK\nid:T_1@@x@@1\n\n^@NACK\nid:T_1@@x@@2\nrequeue:false\n\n^@"),
    _frame("BEGIN\ntransaction:t\n\n^@SEND\ntransaction:t\ndestination:/queue/q\n\nx^@COMMIT\ntransaction:t\n\n^@"),
    _frame("SEND\ndestination:/queue/q\nreply-to:/temp-queue/a\nexpiration:100\npriority:3\n\nx^@"),
    _frame("SEND\ndestination:/exchange/amq.direct/k%2F\nuser-id:guest\ntimestamp:5\n\nx^@DISCONNECT\nreceipt:d\n\n^@"),
    _frame("SUBSCRIBE\nid:3\ndestination:/queue/z\nx-message-ttl:50\nx-max-length:1\ndurable:false\n\n^@\n\n\r\n"),
]

STOMP_TARGETS: Final = [
    Target("stomp", run_stomp, [*_CONNECTS, *(_CONNECTS[0] + one for one in _FRAMES[:3]), *_FRAMES], (Ended,), cost=9)
]
