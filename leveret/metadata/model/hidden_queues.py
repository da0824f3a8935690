"""The hidden queues in which delayed exchanges keep messages (see `leveret.broker.kinds.delayed_queue`).

Each exchange of type `x-delayed-message` has one, made and deleted by the same command as the exchange, so that neither
ever exists without the other. For the log, the ring and placement it is a durable queue like any other. It is placed as
a quorum queue is: a delay may last for weeks, and a client that asks for one should not need a policy.

Clients cannot see it. Its name begins with `amq.`, which they cannot declare; they can neither bind it nor consume from
it nor delete it, and listings leave it out.

The names of journals are here too: clients can see and read those, and cannot publish to them.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from leveret.metadata.model.records import QueueSpec
from leveret.metadata.model.refusals import fits
from leveret.metadata.model.view import first_joined
from leveret.protocol.tables import Field, Table

if TYPE_CHECKING:
    from leveret.metadata.model.records import ExchangeSpec
    from leveret.metadata.model.view import View

DELAYED: Final = "x-delayed-message"
EXCHANGE: Final = "x-delayed-exchange"
_PREFIX: Final = "amq.delayed."
_LONG_PREFIX: Final = "amq.delayed:"  # No name with the other prefix begins like this.


JOURNAL_PREFIX: Final = "leveret.journal."
JOURNAL_VHOST: Final = "/"


def is_journal(queue: str) -> bool:
    """Return whether a queue of this name is the event journal of a node (`leveret.broker.event_journal`). Clients may
    read it, and do nothing else with it."""
    return queue.startswith(JOURNAL_PREFIX)


def is_closed(queue: str) -> bool:
    """Return whether no exchange routes to a queue of this name."""
    return queue.startswith((_PREFIX, _LONG_PREFIX, JOURNAL_PREFIX))


def hidden_queue_name(exchange: str) -> str:
    """Return the name of an exchange's hidden queue. The exchange's name may already have 255 bytes, the most allowed.
    """
    name = _PREFIX + exchange
    if fits(name):
        return name
    return _LONG_PREFIX + hashlib.blake2b(exchange.encode("utf-8", "surrogateescape"), digest_size=32).hexdigest()


def is_hidden_queue(queue: str) -> bool:
    """Return whether a queue of this name is one. No command makes any other queue with such a name."""
    return queue.startswith((_PREFIX, _LONG_PREFIX))


def hidden_queue_arguments(exchange: str) -> Table:
    return {"x-queue-type": Field("S", "quorum"), EXCHANGE: Field("S", exchange)}


def make_hidden_queue(number: int, exchange: ExchangeSpec, node: str, view: View | None) -> QueueSpec:
    return QueueSpec(
        number,
        exchange.vhost,
        hidden_queue_name(exchange.name),
        arguments=hidden_queue_arguments(exchange.name),
        node=node if view is None else view.master,
        view=view,
        joined=first_joined(view),
    )


def exchange_of(spec: QueueSpec) -> str:
    """Return the exchange whose messages a hidden queue keeps."""
    return str(spec.arguments[EXCHANGE].value)
