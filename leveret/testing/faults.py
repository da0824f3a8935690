"""What can go wrong with a broker, on demand.

    with broker.faults.raise_alarm("memory"):
        ...                                  # who publishes gets connection.blocked
                                             # and now connection.unblocked
    fault = broker.faults.refuse_connections()
    ...
    fault.clear()

Faults are states of the running broker: one that is started again has none. To stop, kill and start it is the broker's
own matter (`Broker.kill`).
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from leveret.testing.handle import Broker


class Fault:
    """Something that is wrong until it is cleared, or until the end of a `with`."""

    def __init__(self, set_: Callable[[bool], object]) -> None:
        self._set = set_
        set_(True)

    def clear(self) -> None:
        self._set(False)

    def __enter__(self) -> Fault:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()


class Faults:
    """Of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._call = broker.admin.call

    def drop_connections(self, name: str | None = None) -> int:
        """Cut the connections as a broken network would, without a word; the number of those cut.

        `name`: only those whose client calls itself so (`connection_name`), or whose addresses these are
        ("127.0.0.1:40000 -> 127.0.0.1:5672").
        """
        return int(self._call("drop_connections", name=name)["dropped"])

    def refuse_connections(self) -> Fault:
        """Nobody listens at the port. Connections that are there stay; see `drop_connections`."""
        return Fault(lambda on: self._call("refuse_connections", on=on))

    def refuse_publishes(self) -> Fault:
        """Publishes are thrown away. Who asked for confirms gets basic.nack; others are not told."""
        return Fault(lambda on: self._call("refuse_publishes", on=on))

    def part(self, *others: Broker) -> Fault:
        """This broker and these others have no links with each other, as if the network between them were cut. Clients
        reach all of them."""
        names = [other.name for other in others]
        return Fault(lambda on: self._call("part", nodes=names, on=on))

    def raise_alarm(self, resource: Literal["memory", "disk"]) -> Fault:
        """A connection that publishes is told so with connection.blocked. Its publish, and all that it sends behind it,
        waits for the end of the alarm."""
        return Fault(lambda on: self._call("be_short", resource=resource, on=on))

    def clear(self) -> None:
        """All of them."""
        self._call("clear_faults")
