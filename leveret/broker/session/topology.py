"""What a client declares, binds, deletes and purges: whether it may, what is there already, and what is changed.

A change of metadata is proposed, and answered when it is in force. What a queue is asked may be answered by another
node. So each method takes `then`, and calls it once, at once or later, with the answer or with a `Refusal`: see
`leveret.broker.session`.

Permissions, the order of checks and the texts are RabbitMQ's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from leveret.broker.routing.reply_address import ADDRESS
from leveret.broker.session.arguments import check_queue_arguments
from leveret.broker.session.checks import (
    CLOSED,
    Refused,
    check_binding_arguments,
    check_exchange_arguments,
    check_exchange_type,
    check_owner,
    check_permission,
    check_quorum_delete,
    check_topic,
    missing,
    refuse,
    refuse_default,
    refuse_journal,
    refuse_reserved,
)
from leveret.broker.session.stream_checks import refuse_for_stream
from leveret.broker.session.wanted import QueueFound
from leveret.metadata.model import commands as c
from leveret.metadata.model.hidden_queues import DELAYED, hidden_queue_arguments, hidden_queue_name
from leveret.metadata.model.records import NO_ARGUMENTS, Binding
from leveret.metadata.model.refusals import Refusal, not_found, resource
from leveret.metadata.rules.redeclare import exchange_mismatch, queue_declare_locked, queue_mismatch
from leveret.protocol.errors import ReplyCode

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue
    from leveret.broker.delivery.answers import Status
    from leveret.broker.session.session import Session
    from leveret.broker.session.wanted import BindingWanted, ExchangeWanted, QueueWanted
    from leveret.metadata.model.records import ExchangeSpec, QueueSpec
    from leveret.metadata.model.view import View
    from leveret.metadata.rules.permissions import Which
    from leveret.metadata.store import Applied


class Topology:
    """The part of a session that declares and deletes."""

    __slots__ = ("broker", "login", "session", "vhost")

    def __init__(self, session: Session) -> None:
        self.session = session
        self.login = session.login
        self.broker = session.broker
        self.vhost = session.login.vhost

    # -- Common ground -------------------------------------------------------------------------------------------

    def queue(self, name: str, which: Which | None) -> AnyQueue:
        """The queue of that name, if the user may use it so and nobody else owns it. Raises `Refused`."""
        if which is not None:
            check_permission(self.login, "queue", name, which)
        queue = self.vhost.queue(name)
        if queue is None:
            raise missing("queue", name, self.vhost.name)
        check_owner(self.login, queue.spec)
        return queue

    def _propose(
        self,
        command: c.Command,
        on_applied: Callable[[], None],
        then: Callable[[Any], None],
        on_abandoned: Callable[[], None] = lambda: None,
        missing_is_done: bool = False,
    ) -> None:
        """Change the metadata, then go on with `on_applied`; with `on_abandoned` if the session is over by then."""

        def on_answer(applied: Applied) -> None:
            refused = applied.refused
            if self.session.is_closed:
                on_abandoned()
                then(CLOSED)
            elif refused is not None and not (missing_is_done and refused.code == ReplyCode.NOT_FOUND):
                then(refused)
            else:
                self._attempt(on_applied, then)

        self.broker.propose_for(self.login.id, command, on_answer)

    @staticmethod
    def _attempt(action: Callable[[], None], then: Callable[[Any], None]) -> None:
        """Do something that calls `then`, or is refused."""
        try:
            action()
        except Refused as refused:
            then(refused.refusal)

    def _ask_status(
        self, queue: AnyQueue, then: Callable[[Any], None], on_told: Callable[[Status | None], None]
    ) -> None:
        """Ask a queue, then go on with `on_told`. It is told None if the queue was deleted before its node had the
        question; that this node has not heard of that yet makes no difference."""
        gone = not_found("queue", queue.spec.name, queue.spec.vhost)

        def on_answer(status: Status | Refusal) -> None:
            if self.session.is_closed:
                then(CLOSED)
            elif status == gone or (isinstance(status, Refusal) and queue.deleted):
                self._attempt(lambda: on_told(None), then)
            elif isinstance(status, Refusal):
                then(status)
            else:
                self._attempt(lambda: on_told(status), then)

        queue.status(on_answer)

    # -- Queues --------------------------------------------------------------------------------------------------

    def declare_queue(self, wanted: QueueWanted, then: Callable[[QueueFound | Refusal], None]) -> None:
        """There is such a queue, or it is made now."""
        self._attempt(lambda: self._declare_queue(wanted, then), then)

    def find_queue(self, name: str, then: Callable[[QueueFound | Refusal], None]) -> None:
        """There is a queue of that name, whatever it is like."""
        self._attempt(lambda: self._find_queue(in_one_line(name), then), then)

    def _find_queue(self, name: str, then: Callable[[QueueFound | Refusal], None]) -> None:
        if name.startswith(ADDRESS):
            self._find_inbox(name, then)
            return
        self.broker.totals.queues_declared += 1
        queue = self.queue(name, None)
        self._found(queue, lambda: self._find_queue(name, then), then)

    def _find_inbox(self, name: str, then: Callable[[QueueFound | Refusal], None]) -> None:
        """The pseudo-queue of direct reply-to, or the address of a client that waits for an answer."""
        nobody = not_found("queue", name, self.vhost.name)
        self.broker.replies.ask(name, lambda there: then(QueueFound(name, 0, 1) if there else nobody))

    def _declare_queue(self, wanted: QueueWanted, then: Callable[[QueueFound | Refusal], None]) -> None:
        login, broker, vhost = self.login, self.broker, self.vhost
        name = wanted.name = in_one_line(wanted.name)
        if name.startswith(ADDRESS):
            self._find_inbox(name, then)
            return
        broker.totals.queues_declared += 1
        if not name:
            name = broker.unique_name("amq.gen-")
        check_permission(login, "queue", name, "configure")
        refuse_journal(vhost.name, name)
        if vhost.queue(name) is not None:
            self._redeclare(wanted, name, then)
            return
        refuse_reserved("queue", wanted.name)
        check_queue_arguments(vhost.name, name, wanted)
        if (letters := wanted.arguments.get("x-dead-letter-exchange")) is not None:
            # A client that names a dead-letter exchange must be allowed to read the queue and write to the exchange.
            check_permission(login, "queue", name, "read")
            check_permission(login, "exchange", letters.value, "write")
        owner = login.id if wanted.exclusive else None
        home, view = self._place(name, wanted)
        command = c.DeclareQueue(
            vhost.name,
            name,
            wanted.durable,
            wanted.exclusive,
            wanted.auto_delete,
            wanted.arguments,
            owner,
            home,
            view,
        )

        def on_declared() -> None:
            queue = vhost.queues.get(name)
            if queue is None:
                raise missing("queue", name, vhost.name)
            broker.totals.queues_created += 1
            if owner is not None and queue.spec.owner == owner:
                login.own(queue)
            self._redeclare(wanted, name, then)  # A client of another node may have been faster, and wanted another.

        def on_abandoned() -> None:
            queue = vhost.queues.get(name)
            if queue is not None and owner is not None and queue.spec.owner == owner:
                broker.on_unused(queue)  # Nobody else can ever use or delete it.

        self._propose(command, on_declared, then, on_abandoned)

    def _place(self, name: str, wanted: QueueWanted) -> tuple[str, View | None]:
        """The node on which a new queue is, and its members if it is mirrored."""
        member_changes = self.broker.member_changes
        if member_changes is None or wanted.exclusive:
            return self.broker.node_name, None
        home = member_changes.home(self.vhost.name, name, wanted.arguments)
        return home, member_changes.first_view(self.vhost.name, name, wanted.durable, wanted.arguments, home)

    def _redeclare(self, wanted: QueueWanted, name: str, then: Callable[[QueueFound | Refusal], None]) -> None:
        """The queue exists: it must be what is wanted."""
        queue = self.vhost.queues[name]
        locked = queue_declare_locked(queue.spec, wanted.exclusive, self.login.id)
        if locked is not None:
            self._refuse_locked(wanted, queue, Refusal(ReplyCode.RESOURCE_LOCKED, locked), then)
            return
        mismatch = queue_mismatch(queue.spec, wanted.durable, wanted.auto_delete, wanted.arguments)
        if mismatch is not None:
            refuse(ReplyCode.PRECONDITION_FAILED, mismatch)
        self._found(queue, lambda: self._declare_queue(wanted, then), then)

    def _refuse_locked(
        self, wanted: QueueWanted, queue: AnyQueue, refusal: Refusal, then: Callable[[QueueFound | Refusal], None]
    ) -> None:
        """Unless the owner's node is lost: if the queue goes with it, the name is free."""
        if queue.is_local or queue.client_end is not None:
            raise Refused(refusal)

        def on_told(status: Status | None) -> None:
            if status is not None:
                raise Refused(refusal)
            self._declare_queue(wanted, then)

        self._ask_status(queue, then, on_told)

    def _found(
        self, queue: AnyQueue, on_gone: Callable[[], None], then: Callable[[QueueFound | Refusal], None]
    ) -> None:
        def on_told(status: Status | None) -> None:
            if status is None:
                on_gone()
            else:
                then(QueueFound(queue.spec.name, status.ready, status.consumers))

        self._ask_status(queue, then, on_told)

    def delete_queue(
        self, name: str, then: Callable[[int | Refusal], None], if_unused: bool = False, if_empty: bool = False
    ) -> None:
        """The answer is how many messages went with the queue. Deleting what is not there is done already."""
        self._attempt(lambda: self._delete_queue(in_one_line(name), then, if_unused, if_empty), then)

    def _delete_queue(
        self, name: str, then: Callable[[int | Refusal], None], if_unused: bool, if_empty: bool
    ) -> None:
        check_permission(self.login, "queue", name, "configure")
        refuse_journal(self.vhost.name, name)
        queue = self.vhost.queue(name)
        if queue is None:
            then(0)
            return
        check_owner(self.login, queue.spec)
        check_quorum_delete(queue.spec, if_unused, if_empty)
        called = resource("queue", name, self.vhost.name)
        if not queue.is_local and queue.client_end is None:
            if not if_unused and not if_empty:
                self._drop(queue.spec, 0, then)  # Its node is down, which must not keep anybody from giving it up.
                return
            if if_empty and queue.spec.view is not None:  # RabbitMQ's code for one that nobody can look into.
                refuse(ReplyCode.PRECONDITION_FAILED, f"{called} may not be empty: nobody leads it")

        def on_told(status: Status | None) -> None:
            if status is None:
                then(0)
                return
            if if_unused and status.consumers:
                refuse(ReplyCode.PRECONDITION_FAILED, f"{called} in use")
            if if_empty and status.ready:
                refuse(ReplyCode.PRECONDITION_FAILED, f"{called} not empty")
            self._drop(queue.spec, status.ready, then)

        self._ask_status(queue, then, on_told)

    def _drop(self, spec: QueueSpec, count: int, then: Callable[[int | Refusal], None]) -> None:
        """Delete a queue. Messages that enter it until the cluster has agreed go with it."""
        command = c.DeleteQueue(spec.vhost, spec.name, spec.id)
        self._propose(command, lambda: then(count), then, missing_is_done=True)

    def purge_queue(self, name: str, then: Callable[[int | Refusal], None]) -> None:
        """The answer is how many messages are gone: those that were ready."""

        def purge() -> None:
            queue = self.queue(name, "read")
            refuse_for_stream(queue.spec, "queue.purge")
            queue.purge_all(then)

        self._attempt(purge, then)

    # -- Exchanges -----------------------------------------------------------------------------------------------

    def declare_exchange(self, wanted: ExchangeWanted, then: Callable[[bool | Refusal], None]) -> None:
        """There is such an exchange, or it is made now."""
        self._attempt(lambda: self._declare_exchange(wanted, then), then)

    def find_exchange(self, name: str, then: Callable[[bool | Refusal], None]) -> None:
        """There is an exchange of that name, whatever it is like."""

        def find() -> None:
            found = in_one_line(name)
            refuse_default(found)
            if (self.vhost.name, found) not in self.broker.metadata.exchanges:
                raise missing("exchange", found, self.vhost.name)
            then(True)

        self._attempt(find, then)

    def _declare_exchange(self, wanted: ExchangeWanted, then: Callable[[bool | Refusal], None]) -> None:
        name = wanted.name = in_one_line(wanted.name)
        check_exchange_type(wanted.type)
        refuse_default(name)
        check_permission(self.login, "exchange", name, "configure")
        spec = self.broker.metadata.exchanges.get((self.vhost.name, name))
        if spec is None:
            self._new_exchange(wanted, then)
        else:
            _check_same(wanted, spec)
            then(True)

    def _new_exchange(self, wanted: ExchangeWanted, then: Callable[[bool | Refusal], None]) -> None:
        broker, vhost, name = self.broker, self.vhost.name, wanted.name
        refuse_reserved("exchange", name)
        check_exchange_arguments(self.login, wanted)

        def on_declared() -> None:
            spec = broker.metadata.exchanges.get((vhost, name))
            if spec is not None:  # A client of another node may have been faster, and wanted another.
                _check_same(wanted, spec)
            then(True)

        home, view = broker.node_name, None
        if wanted.type == DELAYED and broker.member_changes is not None:
            hidden, arguments = hidden_queue_name(name), hidden_queue_arguments(name)
            home = broker.member_changes.home(vhost, hidden, arguments)
            view = broker.member_changes.first_view(vhost, hidden, True, arguments, home)
        command = c.DeclareExchange(
            vhost,
            name,
            wanted.type,
            wanted.durable,
            wanted.auto_delete,
            wanted.internal,
            wanted.arguments,
            home if wanted.type == DELAYED else "",
            view,
        )
        self._propose(command, on_declared, then)

    def delete_exchange(self, name: str, then: Callable[[bool | Refusal], None], if_unused: bool = False) -> None:
        """Deleting what is not there is done already."""

        def delete() -> None:
            exchange = in_one_line(name)
            refuse_default(exchange)
            check_permission(self.login, "exchange", exchange, "configure")
            command = c.DeleteExchange(self.vhost.name, exchange, if_unused)
            self._propose(command, lambda: then(True), then, missing_is_done=True)

        self._attempt(delete, then)

    # -- Bindings ------------------------------------------------------------------------------------------------

    def bind(self, wanted: BindingWanted, then: Callable[[bool | Refusal], None]) -> None:
        self._attempt(lambda: self._bind(c.Bind, wanted, then), then)

    def unbind(self, wanted: BindingWanted, then: Callable[[bool | Refusal], None]) -> None:
        """Unbinding what is not bound, or not even there, is done already."""
        self._attempt(lambda: self._bind(c.Unbind, wanted, then), then)

    def _bind(
        self, kind: type[c.Bind] | type[c.Unbind], wanted: BindingWanted, then: Callable[[bool | Refusal], None]
    ) -> None:
        """All four: bind and unbind, of queues and of exchanges."""
        metadata, vhost, key, arguments = self.broker.metadata, self.vhost, wanted.key, wanted.arguments
        source, destination = in_one_line(wanted.source), in_one_line(wanted.destination)
        if wanted.kind == "exchange":
            refuse_default(destination)
        check_permission(self.login, wanted.kind, destination, "write")
        if wanted.kind == "queue":
            refuse_journal(vhost.name, destination)
        refuse_default(source)
        check_permission(self.login, "exchange", source, "read")
        spec = metadata.exchanges.get((vhost.name, source))
        if spec is not None:
            check_topic(self.login, spec, key, "read")
        if kind is c.Unbind:
            binding = Binding(vhost.name, source, wanted.kind, destination, key, arguments or NO_ARGUMENTS)
            if binding not in metadata.bindings:
                then(True)
                return
        there = metadata.exchanges if wanted.kind == "exchange" else metadata.queues
        if spec is not None and kind is c.Bind and (vhost.name, destination) in there:
            check_binding_arguments(spec, key, arguments)
        if wanted.kind == "queue":
            queue = vhost.queue(destination)
            if queue is not None:
                check_owner(self.login, queue.spec)
        command = kind(vhost.name, source, wanted.kind, destination, key, arguments)
        self._propose(command, lambda: then(True), then, missing_is_done=kind is c.Unbind)


def _check_same(wanted: ExchangeWanted, spec: ExchangeSpec) -> None:
    """The exchange exists: it must be what is wanted."""
    mismatch = exchange_mismatch(
        spec, wanted.type, wanted.durable, wanted.auto_delete, wanted.internal, wanted.arguments
    )
    if mismatch is not None:
        refuse(ReplyCode.PRECONDITION_FAILED, mismatch)


def in_one_line(name: str) -> str:
    """A name as RabbitMQ takes it: without line breaks, which would tear logs and listings apart."""
    return name.replace("\n", "").replace("\r", "")
