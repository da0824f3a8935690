"""Exchanges, queues and bindings are made and deleted; queues are emptied, synchronised and moved.

All but the last is done by a channel (`session`), with the rights of whoever asks. A queue that is to be declared at
another node (`"node"`) is declared by a channel there: a queue lives where it is declared, unless a locator says
otherwise.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote_plus

from leveret.management.api.common import request_body
from leveret.management.api.common.base import Handlers, NoAnswer, created, done, refuse
from leveret.management.api.common.binding_keys import properties_key
from leveret.management.api.common.internal_client import Closed, Session
from leveret.management.http.http_messages import Problem, Response, bad_request, not_found
from leveret.metadata.definitions import from_table
from leveret.metadata.model.hidden_queues import is_hidden_queue
from leveret.metadata.model.records import NO_ARGUMENTS, Binding
from leveret.node.admin.queues.lists import running_nodes
from leveret.protocol import methods as m

if TYPE_CHECKING:
    from leveret.management.http.http_messages import Request
    from leveret.management.http.routes import Router
    from leveret.metadata.model.records import DestinationKind
    from leveret.protocol.codec import Method

DEFAULT: Final = "amq.default"  # How paths name the exchange without a name.
KINDS: Final[dict[str, DestinationKind]] = {"q": "queue", "e": "exchange"}


class DeclareHandlers(Handlers):
    def add_to(self, router: Router) -> None:
        router.add("PUT", "/api/exchanges/{vhost}/{exchange}", self.put_exchange)
        router.add("DELETE", "/api/exchanges/{vhost}/{exchange}", self.delete_exchange)
        router.add("PUT", "/api/queues/{vhost}/{queue}", self.put_queue)
        router.add("DELETE", "/api/queues/{vhost}/{queue}", self.delete_queue)
        router.add("DELETE", "/api/queues/{vhost}/{queue}/contents", self.purge)
        router.add("POST", "/api/queues/{vhost}/{queue}/actions", self.act)
        for letter, kind in KINDS.items():
            path = f"/api/bindings/{{vhost}}/e/{{source}}/{letter}/{{destination}}"
            router.add("POST", path, partial(self.bind, kind))
            router.add("DELETE", path + "/{properties}", partial(self.unbind, kind))

    async def _do(self, request: Request, vhost: str, method: Method, wanted: type[Method]) -> None:
        """By a channel. Raises Problem."""
        try:
            async with Session(self.node, request, vhost) as session:
                await session.ask(method, wanted)
        except Closed as closed:
            refuse(closed)

    def _vhost_to_change(self, request: Request) -> str:
        """Return the vhost in which something is to be declared. Raises Problem."""
        vhost = request.parameters["vhost"]
        self.rights.check(request)
        self.check_vhost_exists(vhost)
        self.rights.check_entry(request, vhost)
        return vhost

    # -- Exchanges -----------------------------------------------------------------------------------------------

    async def put_exchange(self, request: Request) -> Response:
        vhost, name = self._vhost_to_change(request), _exchange(request.parameters["exchange"])
        request_body.check_name("exchange", name)
        body = await request_body.object_of(request)
        existed = (vhost, name) in self.metadata.exchanges
        method = m.ExchangeDeclare(
            exchange=name,
            type=request_body.text(body, "type", "direct"),
            durable=request_body.flag(body, "durable"),
            auto_delete=request_body.flag(body, "auto_delete"),
            internal=request_body.flag(body, "internal"),
            arguments=request_body.arguments(body),
        )
        await self._do(request, vhost, method, m.ExchangeDeclareOk)
        return created(existed)

    async def delete_exchange(self, request: Request) -> Response:
        vhost, name = request.parameters["vhost"], _exchange(request.parameters["exchange"])
        self.rights.check_entry(request, vhost)
        if (vhost, name) not in self.metadata.exchanges:
            raise not_found()
        method = m.ExchangeDelete(exchange=name, if_unused=request.asked("if-unused") == "true")
        await self._do(request, vhost, method, m.ExchangeDeleteOk)
        return done()

    # -- Queues --------------------------------------------------------------------------------------------------

    def _queue(self, request: Request) -> tuple[str, str]:
        """A queue that exists. Raises Problem."""
        vhost, name = request.parameters["vhost"], request.parameters["queue"]
        self.rights.check_entry(request, vhost)
        if (vhost, name) not in self.metadata.queues or is_hidden_queue(name):
            raise not_found()
        return vhost, name

    async def put_queue(self, request: Request) -> Response:
        vhost, name = self._vhost_to_change(request), request.parameters["queue"]
        request_body.check_name("queue", name)
        body = await request_body.object_of(request)
        existed = (vhost, name) in self.metadata.queues
        durable, auto_delete = request_body.flag(body, "durable"), request_body.flag(body, "auto_delete")
        arguments = request_body.arguments(body)
        node = body.get("node", self.node.settings.node_name)
        if node not in running_nodes(self.management.server.control):
            raise bad_request(f"Node {node} could not be contacted")
        if node != self.node.settings.node_name and not existed:
            asked = {"durable": durable, "auto_delete": auto_delete, "arguments": from_table(arguments)}
            await self._declare_at(node, request, vhost, name, asked)
        else:
            method = m.QueueDeclare(queue=name, durable=durable, auto_delete=auto_delete, arguments=arguments)
            await self._do(request, vhost, method, m.QueueDeclareOk)
        return created(existed)

    async def _declare_at(self, node: str, request: Request, vhost: str, name: str, asked: dict[str, Any]) -> None:
        try:
            answer = await self.ask_node(
                node, "declare_for", user=request.user, host=request.host, vhost=vhost, name=name, queue=asked
            )
        except NoAnswer:
            raise bad_request(f"Node {node} could not be contacted") from None
        if answer["code"]:
            refuse(Closed(answer["code"], answer["text"]))

    async def delete_queue(self, request: Request) -> Response:
        vhost, name = self._queue(request)
        if_unused, if_empty = (request.asked(key) == "true" for key in ("if-unused", "if-empty"))
        method = m.QueueDelete(queue=name, if_unused=if_unused, if_empty=if_empty)
        await self._do(request, vhost, method, m.QueueDeleteOk)
        return done()

    async def purge(self, request: Request) -> Response:
        vhost, name = self._queue(request)
        await self._do(request, vhost, m.QueuePurge(queue=name), m.QueuePurgeOk)
        return done()

    async def act(self, request: Request) -> Response:
        """RabbitMQ's actions are `sync` and `cancel_sync`; `move` and `promote` to a `node` are ours."""
        self.rights.check_administrator(request)
        vhost, name = self._queue(request)
        body = await request_body.object_of(request, "action")
        action = body["action"]
        if action in ("sync", "cancel_sync"):
            mirrored = self.metadata.queues[vhost, name].view is not None
            if mirrored:  # RabbitMQ does not mind that there is nothing to do.
                await self.ask("sync_queue" if action == "sync" else "cancel_sync_queue", vhost=vhost, name=name)
            return done()
        if action not in ("move", "promote"):
            raise request_body.reason("unknown", action)
        node = body.get("node")
        if not isinstance(node, str):
            raise bad_request(f"the action {action} needs a node")
        if action == "move":
            await self.ask("move_queue_master", vhost=vhost, name=name, node=node)
            return done()
        told = await self.ask(
            "promote_queue", vhost=vhost, name=name, node=node, confirmed=request_body.flag(body, "confirmed")
        )
        if not told["done"]:  # What would be lost must be known before it is.
            raise Problem(400, "bad_request", 'promotion may lose messages: repeat it with "confirmed": true', **told)
        return done()

    # -- Bindings ------------------------------------------------------------------------------------------------

    async def bind(self, kind: DestinationKind, request: Request) -> Response:
        vhost = self._vhost_to_change(request)
        source, destination = _exchange(request.parameters["source"]), request.parameters["destination"]
        body = await request_body.object_of(request)
        key, arguments = request_body.text(body, "routing_key"), request_body.arguments(body)
        request_body.check_name("routing_key", key)
        if kind == "queue":
            queue = m.QueueBind(queue=destination, exchange=source, routing_key=key, arguments=arguments)
            await self._do(request, vhost, queue, m.QueueBindOk)
        else:
            exchange = m.ExchangeBind(
                destination=_exchange(destination), source=source, routing_key=key, arguments=arguments
            )
            await self._do(request, vhost, exchange, m.ExchangeBindOk)
        made = Binding(vhost, source, kind, _exchange(destination), key, arguments or NO_ARGUMENTS)
        location = f"{_quoted(destination)}/{_quoted(properties_key(made))}"
        return Response(201, headers=[("location", location)])

    def _binding(self, request: Request, vhost: str, kind: DestinationKind) -> Binding:
        """Raises Problem. Names are taken as they are listed, and also quoted once only, as many tools do."""
        source, destination = (_exchange(request.parameters[end]) for end in ("source", "destination"))
        given = request.parameters["properties"]
        for binding in self.metadata.bindings_between(vhost, source, kind, destination):
            name = properties_key(binding)
            if given in (name, unquote_plus(name, errors="surrogateescape")):
                return binding
        raise not_found()

    async def unbind(self, kind: DestinationKind, request: Request) -> Response:
        vhost = request.parameters["vhost"]
        self.rights.check_entry(request, vhost)
        binding = self._binding(request, vhost, kind)
        key, arguments = binding.key, binding.arguments
        if binding.destination_kind == "queue":
            queue = m.QueueUnbind(
                queue=binding.destination, exchange=binding.source, routing_key=key, arguments=arguments
            )
            await self._do(request, vhost, queue, m.QueueUnbindOk)
        else:
            exchange = m.ExchangeUnbind(
                destination=binding.destination, source=binding.source, routing_key=key, arguments=arguments
            )
            await self._do(request, vhost, exchange, m.ExchangeUnbindOk)
        return done()


def _exchange(name: str) -> str:
    return "" if name == DEFAULT else name


def _quoted(name: str) -> str:
    return quote(name, safe="", errors="surrogateescape")
