"""Messages are published and got, one request at a time.

This is for people who look and for tests; neither is fast, and RabbitMQ's documentation says so too. What is got with
`ack_requeue_true` goes back when all of it is there, so the queue's order stays, and its messages are marked as
redelivered. How much is got at once is bounded: by number, and by the bytes that are shown.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from leveret.management.api.changes.declare import DEFAULT
from leveret.management.api.common import request_body
from leveret.management.api.common.base import Handlers, unavailable
from leveret.management.api.common.internal_client import Closed, Got, Session
from leveret.management.http.auth import refused
from leveret.management.http.http_messages import Problem, bad_request, json_response
from leveret.metadata.definitions import from_table
from leveret.metadata.rules.permissions import refused_text
from leveret.protocol import methods as m
from leveret.protocol.properties import Properties

if TYPE_CHECKING:
    from leveret.management.http.http_messages import Request, Response
    from leveret.management.http.routes import Router

GOT_MAX: Final = 10_000
GOT_BYTES_MAX: Final = 32 << 20
NUMBERS: Final = {"delivery_mode": (1, 2), "priority": (0, 255), "timestamp": (0, (1 << 64) - 1)}
NAMES: Final = tuple(one.name for one in fields(Properties))
REQUEUE: Final = {
    "ack_requeue_true": True, "reject_requeue_true": True, "ack_requeue_false": None, "reject_requeue_false": False,
}  # fmt: skip


class MessageHandlers(Handlers):
    def add_to(self, router: Router) -> None:
        router.add("POST", "/api/exchanges/{vhost}/{exchange}/publish", self.publish, None, self.may_publish)
        router.add("POST", "/api/queues/{vhost}/{queue}/get", self.get)

    # -- Publishing ----------------------------------------------------------------------------------------------

    def may_publish(self, request: Request) -> None:
        """Before a message is taken in that may be large. Raises Problem."""
        vhost, exchange = request.parameters["vhost"], _exchange(request.parameters["exchange"])
        self.rights.check_entry(request, vhost)
        if not self.node.broker.permissions.check(request.user, vhost, "exchange", exchange, "write"):
            text = refused_text(request.user, vhost, "exchange", exchange)
            raise bad_request(f"403 ACCESS_REFUSED - {text}")  # As the channel says it.

    async def publish(self, request: Request) -> Response:
        vhost, exchange = request.parameters["vhost"], _exchange(request.parameters["exchange"])
        required = ("routing_key", "properties", "payload", "payload_encoding")
        body = await request_body.object_of(request, *required)
        key, payload = request_body.text(body, "routing_key"), _payload(body)
        request_body.check_name("routing_key", key)
        properties = _properties(body["properties"])
        alarm = self.node.alarms.reason()
        if alarm is not None:
            raise unavailable(f"publishers wait: there is an alarm ({alarm})")
        try:
            async with Session(self.node, request, vhost) as session:
                routed = await session.publish(exchange, key, properties, payload)
        except Closed as closed:
            raise bad_request(str(closed)) from None
        return json_response({"routed": routed})

    # -- Getting -------------------------------------------------------------------------------------------------

    async def get(self, request: Request) -> Response:
        vhost, queue = request.parameters["vhost"], request.parameters["queue"]
        self.rights.check_entry(request, vhost)
        body = await request_body.object_of(request, "ackmode", "count", "encoding")
        if not isinstance(body["ackmode"], str) or body["ackmode"] not in REQUEUE:
            raise bad_request(f"ackmode must be one of {', '.join(REQUEUE)}")
        if body["encoding"] not in ("auto", "base64"):
            raise bad_request("Unsupported encoding. Please use auto or base64.")
        count = min(request_body.integer(body["count"]), GOT_MAX)
        truncate = None if body.get("truncate") is None else max(request_body.integer(body["truncate"]), 0)
        try:
            async with Session(self.node, request, vhost) as session:
                shown = await _gather(session, queue, count, body["encoding"], truncate)
                if shown:
                    await _settle(session, queue, REQUEUE[body["ackmode"]], len(shown))
        except Closed as closed:
            raise _not_got(closed) from None
        return json_response(shown)


def _exchange(name: str) -> str:
    return "" if name == DEFAULT else name


def _not_got(closed: Closed) -> Problem:
    if closed.code == 403:
        return refused(closed.text)
    if closed.code == 404:
        return Problem(404, "not_found", closed.text)
    return bad_request(f"{closed.code} {closed.explanation}")


async def _gather(
    session: Session, queue: str, count: int, encoding: str, truncate: int | None
) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = []
    size = 0
    while len(shown) < max(count, 1) and size < GOT_BYTES_MAX:
        if count <= 0:  # Nothing is wanted; but whether it could be had is told.
            await session.ask(m.QueueDeclare(queue=queue, passive=True), m.QueueDeclareOk)
            break
        got = await session.get(queue)
        if got is None:
            break
        shown.append(_shown(got, encoding, truncate))
        size += len(shown[-1]["payload"])
    return shown


async def _settle(session: Session, queue: str, requeue: bool | None, count: int) -> None:
    """All of them; None: acknowledge. The queue is asked something afterwards, for whoever has the answer to this
    request finds its messages back in the queue then, wherever both are asked for."""
    if requeue is None:
        session.say(m.BasicAck(count, multiple=True))
    else:
        session.say(m.BasicNack(count, multiple=True, requeue=requeue))
    with contextlib.suppress(Closed, Problem):  # It was deleted or lost; what was got of it is told all the same.
        await session.ask(m.QueueDeclare(queue=queue, passive=True), m.QueueDeclareOk)


def _shown(got: Got, encoding: str, truncate: int | None) -> dict[str, Any]:
    body = got.body if truncate is None else got.body[:truncate]
    payload, used = _encoded(body, encoding)
    return {
        "payload_bytes": len(got.body),
        "redelivered": got.ok.redelivered,
        "exchange": got.ok.exchange,
        "routing_key": got.ok.routing_key,
        "message_count": got.ok.message_count,
        "properties": _shown_properties(got.properties),
        "payload": payload,
        "payload_encoding": used,
    }


def _encoded(body: bytes, encoding: str) -> tuple[str, str]:
    if encoding == "auto":
        try:
            return body.decode(), "string"
        except UnicodeDecodeError:
            pass  # No text: then as bytes.
    return base64.b64encode(body).decode("ascii"), "base64"


def _shown_properties(properties: Properties) -> dict[str, Any] | list[Any]:
    told: dict[str, Any] = {}
    for name in NAMES:
        value = getattr(properties, name)
        if value is not None:
            told[name] = from_table(value) if name == "headers" else value
    return told or []  # An empty list of pairs, as RabbitMQ writes it; clients look for it.


# -- What is published ---------------------------------------------------------------------------------------------


def _payload(body: dict[str, Any]) -> bytes:
    """Raises Problem."""
    payload, encoding = body["payload"], body["payload_encoding"]
    if not isinstance(payload, str):
        raise bad_request("payload_not_string")
    if encoding == "string":
        return payload.encode("utf-8", "replace")
    if encoding != "base64":
        raise request_body.reason("unsupported_encoding", encoding)
    try:
        return base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        raise request_body.reason("not_base64", payload) from None


def _properties(given: Any) -> Properties:
    """Raises Problem. What AMQP has no property for is left out, as RabbitMQ leaves it."""
    if given == []:
        given = {}
    if not isinstance(given, dict):
        raise bad_request("properties must be an object")
    known: dict[str, Any] = {}
    for name in NAMES:
        value = given.get(name)
        if value is None:
            continue
        if name == "headers":
            if not isinstance(value, dict) and value != []:
                raise bad_request("headers must be an object")
            known[name] = request_body.arguments(given, "headers")
        elif name in NUMBERS:
            known[name] = _number(name, value)
        elif not isinstance(value, str):
            raise request_body.reason("not_string", name)
        else:
            request_body.check_name(name, value)
            known[name] = value
    return Properties(**known)


def _number(name: str, value: Any) -> int:
    low, high = NUMBERS[name]
    if isinstance(value, bool) or not isinstance(value, int):
        raise request_body.reason("not_int", name)
    if not low <= value <= high:
        raise bad_request(f"{name} must be from {low} to {high}")
    return value
