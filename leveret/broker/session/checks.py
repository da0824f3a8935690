"""What a client may not do, found out before anything is changed. The texts are RabbitMQ's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NoReturn

from leveret.broker.routing.delayed_exchange import DELAYED_TYPE
from leveret.broker.routing.router import EXCHANGE_TYPES, check_binding, check_exchange
from leveret.metadata.model.hidden_queues import DELAYED, is_journal
from leveret.metadata.model.refusals import DEFAULT_EXCHANGE, Refusal, not_found, resource
from leveret.metadata.rules.ha_policy import is_quorum
from leveret.metadata.rules.permissions import Kind, Which, refused_text, topic_refused_text
from leveret.metadata.rules.redeclare import queue_locked
from leveret.protocol.errors import ReplyCode
from leveret.protocol.tables import type_name

if TYPE_CHECKING:
    from leveret.broker.login import Login
    from leveret.broker.session.wanted import ExchangeWanted
    from leveret.metadata.model.records import ExchangeSpec, QueueSpec
    from leveret.protocol.tables import Table


CLOSED: Final = Refusal(ReplyCode.CHANNEL_ERROR, "the session is closed")


class Refused(Exception):
    """A client may not do what it asks for, or it cannot be done. Each protocol tells its client in its own way."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(*refusal)
        self.refusal = refusal


def refuse(code: ReplyCode, text: str) -> NoReturn:
    raise Refused(Refusal(code, text))


def check_permission(login: Login, kind: Kind, name: str, which: Which) -> None:
    """`which` is configure, write or read."""
    if not login.broker.permissions.check(login.user, login.vhost.name, kind, name, which):
        refuse(ReplyCode.ACCESS_REFUSED, refused_text(login.user, login.vhost.name, kind, name))


def check_topic(login: Login, exchange: ExchangeSpec, key: str, which: Literal["write", "read"]) -> None:
    """Topic permissions: patterns of routing keys, for those users that have any."""
    if routed_as(exchange) != "topic":
        return
    variables = {"client_id": login.client_id} if login.client_id else None
    permissions = login.broker.permissions
    if not permissions.check_topic(login.user, exchange.vhost, exchange.name, key, which, variables):
        refuse(ReplyCode.ACCESS_REFUSED, topic_refused_text(login.user, exchange.vhost, exchange.name, key))


def routed_as(exchange: ExchangeSpec) -> str:
    """The type by which an exchange routes."""
    return str(exchange.arguments[DELAYED_TYPE].value) if exchange.type == DELAYED else exchange.type


def check_owner(login: Login, spec: QueueSpec) -> None:
    """An exclusive queue is its owner's."""
    locked = queue_locked(spec, login.id)
    if locked is not None:
        refuse(ReplyCode.RESOURCE_LOCKED, locked)


def refuse_journal(vhost: str, name: str) -> None:
    """The node that keeps a journal makes it, and fills it: to clients it is there to be read."""
    if is_journal(name):
        text = f"{resource('queue', name, vhost)} is a journal of the broker, which can only be read"
        refuse(ReplyCode.ACCESS_REFUSED, text)


def refuse_default(exchange: str) -> None:
    """The default exchange is always there, as it is."""
    if not exchange:
        raise Refused(DEFAULT_EXCHANGE)


def refuse_reserved(kind: Kind, name: str) -> None:
    if name.startswith("amq."):
        refuse(ReplyCode.ACCESS_REFUSED, f"{kind} name '{name}' contains reserved prefix 'amq.*'")


def missing(kind: Kind, name: str, vhost: str) -> Refused:
    return Refused(not_found(kind, name, vhost))


def check_quorum_delete(spec: QueueSpec, if_unused: bool, if_empty: bool) -> None:
    for flag, given in (("if-unused", if_unused), ("if-empty", if_empty)):
        if given and is_quorum(spec.arguments):
            text = (
                f"cannot delete {resource('queue', spec.name, spec.vhost)}. "
                f"queue.delete operations with {flag} flag set are not supported by quorum queues"
            )
            refuse(ReplyCode.NOT_IMPLEMENTED, text)


def check_quorum_qos(spec: QueueSpec, shared_prefetch: int) -> None:
    if shared_prefetch and is_quorum(spec.arguments):
        text = f"{resource('queue', spec.name, spec.vhost)} does not support global qos"
        refuse(ReplyCode.NOT_IMPLEMENTED, text)


def check_exchange_type(wanted: str) -> None:
    if wanted not in EXCHANGE_TYPES and wanted != DELAYED:
        refuse(ReplyCode.COMMAND_INVALID, f"unknown exchange type '{wanted}'")


def check_exchange_arguments(login: Login, wanted: ExchangeWanted) -> None:
    """A client that names an alternate exchange must be allowed to read the one and write to the other."""
    alternate = wanted.arguments.get("alternate-exchange")
    if alternate is not None:
        if alternate.kind != "S":
            where = resource("exchange", wanted.name, login.vhost.name)
            text = f"invalid type '{type_name(alternate)}' for arg 'alternate-exchange' in {where}"
            refuse(ReplyCode.PRECONDITION_FAILED, text)
        check_permission(login, "exchange", wanted.name, "read")
        check_permission(login, "exchange", alternate.value, "write")
    problem = check_exchange(wanted.type, wanted.arguments)
    if problem is not None:
        refuse(ReplyCode.PRECONDITION_FAILED, problem)


def check_binding_arguments(exchange: ExchangeSpec, key: str, arguments: Table) -> None:
    problem = check_binding(routed_as(exchange), key, arguments)
    if problem is not None:
        refuse(ReplyCode.PRECONDITION_FAILED, problem)
