"""The channel methods that declare, bind, delete and purge: AMQP's words for what `leveret.broker.session` does.

While a change of metadata is under way its channel waits, and other channels go on: what they propose is agreed on
together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from leveret.broker.session.wanted import BindingWanted, ExchangeWanted, QueueFound, QueueWanted
from leveret.protocol import methods as m

if TYPE_CHECKING:
    from leveret.metadata.model.refusals import Refusal
    from leveret.sessions.amqp.channel import Channel


class Declarations:
    """The part of a channel that deals with metadata."""

    __slots__ = ("channel",)

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    def _answer(self, method: m.Method, answer: m.Method, nowait: bool, ask: Callable[[Any], None]) -> None:
        """Do what a method wants, and say that it is done."""

        def then(_: bool) -> None:
            if not nowait:
                self.channel.reply(answer)

        self.channel.ask(ask, method, then)

    # -- Queues --------------------------------------------------------------------------------------------------

    def on_queue_declare(self, method: m.QueueDeclare) -> None:
        channel, topology = self.channel, self.channel.session.topology
        wanted = QueueWanted(method.queue, method.durable, method.exclusive, method.auto_delete, method.arguments)

        def ask(done: Callable[[QueueFound | Refusal], None]) -> None:
            if method.passive:
                topology.find_queue(method.queue, done)
            else:
                topology.declare_queue(wanted, done)

        def then(found: QueueFound) -> None:
            channel.on_declared(found.name)
            if not method.nowait:
                channel.reply(m.QueueDeclareOk(found.name, found.ready, found.consumers))

        channel.ask(ask, method, then)

    def on_queue_delete(self, method: m.QueueDelete) -> None:
        """The answer comes before the end of this channel's own consumers is told. Clients that wait for the answer
        take no other method on the channel for it."""
        channel = self.channel
        name = channel.queue_name(method.queue, method)
        channel.begin_deleting()

        def then(count: int) -> None:
            if not method.nowait:
                channel.reply(m.QueueDeleteOk(count))
            channel.end_deleting()

        channel.ask(
            lambda done: channel.session.topology.delete_queue(name, done, method.if_unused, method.if_empty),
            method,
            then,
        )

    def on_queue_purge(self, method: m.QueuePurge) -> None:
        channel = self.channel
        name = channel.queue_name(method.queue, method)

        def then(count: int) -> None:
            if not method.nowait:
                channel.reply(m.QueuePurgeOk(count))

        channel.ask(lambda done: channel.session.topology.purge_queue(name, done), method, then)

    def on_queue_bind(self, method: m.QueueBind) -> None:
        wanted = self._queue_binding(method)
        topology = self.channel.session.topology
        self._answer(method, m.QueueBindOk(), method.nowait, lambda done: topology.bind(wanted, done))

    def on_queue_unbind(self, method: m.QueueUnbind) -> None:
        wanted = self._queue_binding(method)
        topology = self.channel.session.topology
        self._answer(method, m.QueueUnbindOk(), False, lambda done: topology.unbind(wanted, done))

    def _queue_binding(self, method: m.QueueBind | m.QueueUnbind) -> BindingWanted:
        name = self.channel.queue_name(method.queue, method)
        # The short form: bind the queue just declared, by its own name.
        key = name if not method.queue and not method.routing_key else method.routing_key
        return BindingWanted(method.exchange, "queue", name, key, method.arguments)

    # -- Exchanges -----------------------------------------------------------------------------------------------

    def on_exchange_declare(self, method: m.ExchangeDeclare) -> None:
        topology = self.channel.session.topology
        wanted = ExchangeWanted(
            method.exchange, method.type, method.durable, method.auto_delete, method.internal, method.arguments
        )

        def ask(done: Callable[[bool | Refusal], None]) -> None:
            if method.passive:
                topology.find_exchange(method.exchange, done)
            else:
                topology.declare_exchange(wanted, done)

        self._answer(method, m.ExchangeDeclareOk(), method.nowait, ask)

    def on_exchange_delete(self, method: m.ExchangeDelete) -> None:
        topology = self.channel.session.topology
        self._answer(
            method,
            m.ExchangeDeleteOk(),
            method.nowait,
            lambda done: topology.delete_exchange(method.exchange, done, method.if_unused),
        )

    def on_exchange_bind(self, method: m.ExchangeBind) -> None:
        wanted = _exchange_binding(method)
        topology = self.channel.session.topology
        self._answer(method, m.ExchangeBindOk(), method.nowait, lambda done: topology.bind(wanted, done))

    def on_exchange_unbind(self, method: m.ExchangeUnbind) -> None:
        wanted = _exchange_binding(method)
        topology = self.channel.session.topology
        self._answer(method, m.ExchangeUnbindOk(), method.nowait, lambda done: topology.unbind(wanted, done))


def _exchange_binding(method: m.ExchangeBind | m.ExchangeUnbind) -> BindingWanted:
    return BindingWanted(method.source, "exchange", method.destination, method.routing_key, method.arguments)


DECLARATIONS: Final[dict[type[m.Method], Callable[[Declarations, Any], None]]] = {
    m.ExchangeDeclare: Declarations.on_exchange_declare,
    m.ExchangeDelete: Declarations.on_exchange_delete,
    m.ExchangeBind: Declarations.on_exchange_bind,
    m.ExchangeUnbind: Declarations.on_exchange_unbind,
    m.QueueDeclare: Declarations.on_queue_declare,
    m.QueueDelete: Declarations.on_queue_delete,
    m.QueuePurge: Declarations.on_queue_purge,
    m.QueueBind: Declarations.on_queue_bind,
    m.QueueUnbind: Declarations.on_queue_unbind,
}
