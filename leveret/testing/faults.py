"""Faults of a broker on demand.

    with broker.faults.raise_alarm("memory"):
        ...                                  # publishers get connection.blocked
                                             # and now connection.unblocked
    fault = broker.faults.refuse_connections()
    ...
    fault.clear()

Faults are states of the running broker: after a restart it has none. See `Broker` for `stop`, `kill` and `start`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from leveret.testing.handle import Broker


class Fault:
    """A fault that lasts until `clear`, or until the end of a `with`."""

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
    """The faults of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._call = broker.admin.call

    def drop_connections(self, name: str | None = None) -> int:
        """Cuts connections as a broken network would, without connection.close, and returns their number.

        `name`: only those with this `connection_name`, or these addresses ("127.0.0.1:40000 -> 127.0.0.1:5672").
        """
        return int(self._call("drop_connections", name=name)["dropped"])

    def refuse_connections(self) -> Fault:
        """Closes the listeners. Open connections stay; see `drop_connections`."""
        return Fault(lambda on: self._call("refuse_connections", on=on))

    def refuse_publishes(self) -> Fault:
        """Drops publishes. Channels with confirms get basic.nack; others get nothing."""
        return Fault(lambda on: self._call("refuse_publishes", on=on))

    def part(self, *others: Broker) -> Fault:
        """Cuts the links between this broker and these others, as if the network between them were cut. Clients reach
        all of them."""
        names = [other.name for other in others]
        return Fault(lambda on: self._call("part", nodes=names, on=on))

    def raise_alarm(self, resource: Literal["memory", "disk"]) -> Fault:
        """Raises an alarm. A connection that publishes gets connection.blocked; its publish, and all that it sends
        after it, waits for the end of the alarm."""
        return Fault(lambda on: self._call("be_short", resource=resource, on=on))

    def clear(self) -> None:
        """Ends all faults."""
        self._call("clear_faults")
