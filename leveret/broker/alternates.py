"""Alternate exchanges that policies give: `alternate-exchange` in a policy counts for every exchange that has not named
one in its own arguments, from the moment the policy is set until it is cleared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.cluster.policies import PolicyBook

if TYPE_CHECKING:
    from leveret.broker.vhost import Vhost
    from leveret.cluster.store import Metadata

KEY: Final = "alternate-exchange"


class Alternates:
    """Keeps the routers of one node up to date."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._book = PolicyBook(metadata)

    def on_declared(self, vhost: Vhost, name: str) -> None:
        if self._metadata.policies or self._metadata.operator_policies:
            self._apply(vhost, name)

    def on_policies(self, vhost: Vhost) -> None:
        """Some policy of the vhost is another now."""
        changes = [self._apply(vhost, name) for name in vhost.router.exchange_names()]
        if any(changes):
            vhost.forget_routes()

    def _apply(self, vhost: Vhost, name: str) -> bool:
        if not name:
            return False  # The default exchange leads to queues by their names, and nowhere else.
        alternate = self._book.effective("exchange", vhost.name, name).definition.get(KEY)
        return vhost.router.set_alternate(name, alternate if isinstance(alternate, str) else None)
