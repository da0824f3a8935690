"""Who may ask what: RabbitMQ's user tags, and its texts for those who may not.

A user without any of the four tags gets nothing from the HTTP API. `management` lets it see and use what its
permissions allow over AMQP, in the vhosts that it may enter; `policymaker` besides set policies and parameters there;
`monitoring` see all vhosts, connections and nodes; `administrator` everything. Permissions hold for administrators too:
what they may not publish to over AMQP, they may not publish to here.

A vhost that does not exist is told before one that must not be entered: RabbitMQ does so, and names of vhosts are no
secret to who has a password.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.management.http.auth import refused
from leveret.management.http.http_messages import not_found

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.management.http.http_messages import Request

ADMINISTRATOR: Final = "administrator"
MONITORING: Final = "monitoring"
POLICYMAKER: Final = "policymaker"
MANAGEMENT: Final = "management"
ANY: Final = frozenset({ADMINISTRATOR, MONITORING, POLICYMAKER, MANAGEMENT})


class Authorization:
    """Checks by the present tags and permissions of whoever asks. All raise Problem."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def tags(self, request: Request) -> tuple[str, ...]:
        user = self.broker.metadata.users.get(request.user)
        return () if user is None else user.tags  # It may have been deleted since it was let in.

    def is_administrator(self, request: Request) -> bool:
        return ADMINISTRATOR in self.tags(request)

    def is_monitor(self, request: Request) -> bool:
        return not {ADMINISTRATOR, MONITORING}.isdisjoint(self.tags(request))

    def is_policymaker(self, request: Request) -> bool:
        return not {ADMINISTRATOR, POLICYMAKER}.isdisjoint(self.tags(request))

    def may_see(self, request: Request, vhost: str) -> bool:
        """Tell whether lists show the user what is in the vhost."""
        return self.is_monitor(request) or self.broker.permissions.may_enter(request.user, vhost)

    def check(self, request: Request) -> None:
        if ANY.isdisjoint(self.tags(request)):
            raise refused("Not management user")

    def check_administrator(self, request: Request) -> None:
        self.check(request)
        if not self.is_administrator(request):
            raise refused("Not administrator user")

    def check_monitor(self, request: Request) -> None:
        self.check(request)
        if not self.is_monitor(request):
            raise refused("Not monitor user")

    def check_policymaker(self, request: Request, vhost: str | None = None) -> None:
        """To change policies and parameters of a vhost, or see parameters at all."""
        self.check(request)
        if not self.is_policymaker(request):
            raise refused("User not authorised to access object")
        if vhost is not None and vhost in self.broker.vhosts and not self._may_enter(request, vhost):
            raise refused("User not authorised to access object")

    def vhosts(self, request: Request) -> list[str]:
        """Return the vhosts that a list covers: the one that the path names, or all that the user may see."""
        vhost = request.parameters.get("vhost")
        if vhost is not None:
            self.check_vhost(request, vhost)
            return [vhost]
        self.check(request)
        return [name for name in self.broker.metadata.vhosts if self.may_see(request, name)]

    def check_vhost(self, request: Request, vhost: str) -> None:
        """To see or use what is in a vhost."""
        self.check(request)
        if vhost not in self.broker.vhosts:
            raise not_found()
        if not self.may_see(request, vhost):
            raise refused("User not authorised to access virtual host")

    def check_entry(self, request: Request, vhost: str) -> None:
        """To change what is in a vhost, as over AMQP."""
        self.check(request)
        if vhost not in self.broker.vhosts:
            raise not_found()
        if not self.broker.permissions.may_enter(request.user, vhost):
            raise refused("User not authorised to access virtual host")

    def _may_enter(self, request: Request, vhost: str) -> bool:
        return self.is_administrator(request) or self.broker.permissions.may_enter(request.user, vhost)
