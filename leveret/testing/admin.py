"""Inspects and configures a broker under test, with the control calls of leveretctl.

A call takes about a millisecond and waits for no client, so it can also be made from a coroutine. `call` makes any
control call that has no method here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from leveret.testing.handle import Broker

ALL = ".*"
EVERYWHERE = "/"


class AdminError(Exception):
    """The broker refused a call. The text is what leveretctl would show, `code` its exit code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class QueueInfo(NamedTuple):
    """A queue. `messages` = `messages_ready` + `messages_unacknowledged`."""

    name: str
    messages: int
    messages_ready: int
    messages_unacknowledged: int
    consumers: int
    durable: bool
    auto_delete: bool
    exclusive: bool
    policy: str
    node: str
    state: str


class ExchangeInfo(NamedTuple):
    name: str
    type: str
    durable: bool
    auto_delete: bool
    internal: bool


class BindingInfo(NamedTuple):
    source_name: str
    destination_kind: str
    destination_name: str
    routing_key: str


class ConnectionInfo(NamedTuple):
    """A connection. `name` is made of its addresses; `client_name` is the client's `connection_name`, or ""."""

    name: str
    client_name: str
    user: str
    vhost: str
    state: str
    channels: int


class PolicyInfo(NamedTuple):
    name: str
    pattern: str
    apply_to: str
    definition: dict[str, Any]
    priority: int


class Admin:
    """The control calls of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def call(self, command: str, **arguments: Any) -> Any:
        """Makes any control call, with the names that leveretctl sends. Raises AdminError, NotRunning."""
        answer = self._broker.ask({"command": command, "arguments": arguments})
        if "error" in answer:
            raise AdminError(answer["error"]["code"], answer["error"]["text"])
        return answer["ok"]

    def _rows(self, command: str, columns: Sequence[str], **arguments: Any) -> list[list[Any]]:
        rows: list[list[Any]] = []
        after: Any = None
        while True:
            page = self.call(command, columns=list(columns), after=after, **arguments)
            rows += page["rows"]
            after = page["next"]
            if after is None:
                return rows

    # -- Queues, exchanges, connections ----------------------------------------------------------------------------

    def queues(self, vhost: str = EVERYWHERE) -> list[QueueInfo]:
        """Returns all queues of a vhost, in the order of their declaration."""
        return [QueueInfo(*row) for row in self._rows("list_queues", QueueInfo._fields, vhost=vhost)]

    def queue(self, name: str, vhost: str = EVERYWHERE) -> QueueInfo:
        """Returns one queue. Raises LookupError."""
        for one in self.queues(vhost):
            if one.name == name:
                return one
        raise LookupError(f"there is no queue '{name}' in vhost '{vhost}'")

    def exchanges(self, vhost: str = EVERYWHERE) -> list[ExchangeInfo]:
        """Returns all exchanges of a vhost, including the predeclared ones."""
        return [ExchangeInfo(*row) for row in self._rows("list_exchanges", ExchangeInfo._fields, vhost=vhost)]

    def bindings(self, vhost: str = EVERYWHERE) -> list[BindingInfo]:
        """Returns all bindings of a vhost, including those of the default exchange."""
        return [BindingInfo(*row) for row in self._rows("list_bindings", BindingInfo._fields, vhost=vhost)]

    def connections(self) -> list[ConnectionInfo]:
        columns = ("name", "client_properties", "user", "vhost", "state", "channels")
        rows = self._rows("list_connections", columns)
        return [ConnectionInfo(row[0], _client_name(row[1]), *row[2:]) for row in rows]

    def close_connections(self, reason: str = "closed by a test") -> int:
        """Closes all connections in order, with CONNECTION_FORCED. `Faults.drop_connections` cuts them."""
        return int(self.call("close_connections", vhost=None, user=None, reason=reason)["closed"])

    def close_clients(self, products: list[str] | None, reason: str = "closed by a test") -> int:
        """Closes connections of these client libraries (client property `product`); None: all."""
        return int(self.call("close_clients", products=products, reason=reason)["closed"])

    def purge(self, queue: str, vhost: str = EVERYWHERE) -> int:
        """Deletes the ready messages of a queue, and returns their number. Unacknowledged ones stay."""
        return int(self.call("purge_queue", vhost=vhost, name=queue)["messages"])

    def delete_queue(self, queue: str, vhost: str = EVERYWHERE) -> int:
        """Deletes a queue, and returns the number of its messages."""
        return int(self.call("delete_queue", vhost=vhost, name=queue, if_empty=False, if_unused=False)["messages"])

    def purge_all(self, vhost: str = EVERYWHERE) -> int:
        return sum(self.purge(one.name, vhost) for one in self.queues(vhost) if one.messages_ready)

    def delete_all(self) -> None:
        """Deletes queues, exchanges, bindings, policies, vhosts, users and limits, down to what a new broker has.
        Connections stay open, except those to a deleted vhost."""
        self.call("delete_everything")

    # -- Vhosts, users, policies -----------------------------------------------------------------------------------

    def vhosts(self) -> list[str]:
        return [row[0] for row in self._rows("list_vhosts", ("name",))]

    def add_vhost(self, name: str) -> None:
        """Adds a vhost, and gives the default user all permissions in it, unlike rabbitmqctl add_vhost."""
        self.call("add_vhost", name=name, description=None, tags=None)
        self.set_permissions(self._broker.user, name)

    def delete_vhost(self, name: str) -> None:
        self.call("delete_vhost", name=name)

    def users(self) -> dict[str, tuple[str, ...]]:
        """Returns the tags of all users by name."""
        return {one["user"]: tuple(one["tags"]) for one in self.call("list_users")}

    def add_user(self, name: str, password: str, *, tags: Sequence[str] = (), vhost: str | None = EVERYWHERE) -> None:
        """Adds a user, with all permissions in `vhost` if it is not None."""
        import secrets

        from leveret.metadata.rules.passwords import SALT_BYTES, SHA256, hash_password

        hashed = hash_password(password, secrets.token_bytes(SALT_BYTES))
        self.call("add_user", name=name, password_hash=hashed, hashing=SHA256)
        if tags:
            self.call("set_user_tags", name=name, tags=list(tags))
        if vhost is not None:
            self.set_permissions(name, vhost)

    def delete_user(self, name: str) -> None:
        self.call("delete_user", name=name)

    def set_permissions(
        self, user: str, vhost: str = EVERYWHERE, configure: str = ALL, write: str = ALL, read: str = ALL
    ) -> None:
        self.call("set_permissions", user=user, vhost=vhost, configure=configure, write=write, read=read)

    def policies(self, vhost: str = EVERYWHERE, *, operator: bool = False) -> list[PolicyInfo]:
        import json

        return [
            PolicyInfo(one["name"], one["pattern"], one["apply-to"], json.loads(one["definition"]), one["priority"])
            for one in self.call("list_policies", vhost=vhost, operator=operator)
        ]

    def set_policy(
        self,
        name: str,
        pattern: str,
        definition: Mapping[str, Any],
        *,
        vhost: str = EVERYWHERE,
        apply_to: str = "all",
        priority: int = 0,
        operator: bool = False,
    ) -> None:
        self.call(
            "set_policy",
            vhost=vhost,
            name=name,
            pattern=pattern,
            apply_to=apply_to,
            priority=priority,
            definition=dict(definition),
            operator=operator,
        )

    def clear_policy(self, name: str, vhost: str = EVERYWHERE, *, operator: bool = False) -> None:
        self.call("clear_policy", vhost=vhost, name=name, operator=operator)


def _client_name(properties: Sequence[Sequence[Any]]) -> str:
    return next((str(value) for name, _, value in properties if name == "connection_name"), "")
