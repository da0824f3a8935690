"""Alternate exchanges that policies give: `alternate-exchange` in a policy counts for every exchange that has not named
one in its own arguments, from the moment the policy is set until it is cleared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.metadata.rules.policies import Policies

if TYPE_CHECKING:
    from leveret.broker.vhost import Vhost
    from leveret.metadata.store import Metadata

KEY: Final = "alternate-exchange"
AT_ONCE: Final = 20_000  # Microseconds that searches for names may take in one turn.


class AlternateExchanges:
    """Keeps the routers of one node up to date."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._book = Policies(metadata)
        self.left: list[tuple[Vhost, list[str]]] = []  # Exchanges that have not been told.

    def on_declared(self, vhost: Vhost, name: str) -> None:
        if self._metadata.policies or self._metadata.operator_policies:
            self._apply(vhost, name)

    def on_policies(self, vhost: Vhost) -> None:
        """Some policy of the vhost is another now. Exchanges beyond what a turn bears are told in the next ones."""
        self.left = [(where, names) for where, names in self.left if where is not vhost]
        self.left.append((vhost, list(vhost.router.exchange_names())))
        self.go_on()

    def go_on(self) -> None:
        """Do as much as fits into a turn; there is more to do while some are `left`."""
        enough = self._book.spent + AT_ONCE
        while self.left and self._book.spent <= enough:
            vhost, names = self.left[0]
            changed = False
            while names and self._book.spent <= enough:
                changed |= self._apply(vhost, names.pop())
            if changed:
                vhost.forget_routes()
            if not names:
                del self.left[0]

    def _apply(self, vhost: Vhost, name: str) -> bool:
        if not name:
            return False  # The default exchange leads to queues by their names, and nowhere else.
        if not vhost.router.has_exchange(name):
            return False  # Deleted before its turn came.
        alternate = self._book.effective("exchange", vhost.name, name).definition.get(KEY)
        return vhost.router.set_alternate(name, alternate if isinstance(alternate, str) else None)
