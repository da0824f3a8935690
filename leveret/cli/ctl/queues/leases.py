"""Commands about leases: named readers of queues that outlive whoever reads. See docs/leases.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.cli.ctl.base.command import VHOST, Command, Given, Message, Output
from leveret.cli.ctl.queues.listings import IN_VHOST, MONITORING, QUEUES
from leveret.node.admin.common import listing_columns as columns

if TYPE_CHECKING:
    from leveret.cli.ctl.base.session import Session


def list_leases(session: Session, given: Given) -> Output:
    session.banner(f"Listing leases in vhost {given.vhost} ...")
    return session.rows("list_leases", tuple(given.words) or columns.LEASES_SHOWN, {"vhost": given.vhost})


def release_lease(session: Session, given: Given) -> Output:
    queue, name = given.words
    session.banner(f"Releasing lease '{name}' of queue '{queue}' in vhost '{given.vhost}' ...")
    count = session.ask("release_lease", {"vhost": given.vhost, "queue": queue, "name": name})["messages"]
    return Message(f"Lease was released, {count} messages went back to the queue")


COMMANDS: Final = (
    Command(
        "list_leases", MONITORING, IN_VHOST, "Lists the leases of the queues of a vhost",
        "leveretctl list_leases name queue out age timeout", list_leases, 0, None, VHOST, columns=columns.LEASES,
        more="acked: places below this are settled; next: the next place; out: messages in the lease; lag: these and "
        "the ready messages of the queue; age: seconds since it was last used; timeout: seconds without use after "
        "which it is released",
    ),
    Command(
        "release_lease", QUEUES, "[--vhost <vhost>] <queue> <lease>",
        "Returns the messages of a lease to their queue, and closes the lease",
        "leveretctl release_lease orders nightly",
        release_lease, 2, 2, VHOST,
        more="Unacknowledged messages are delivered to the consumers of the queue, marked as redelivered. A job that "
        "opens the lease again continues with the next place, and sees that the earlier ones are gone.",
    ),
)  # fmt: skip
