"""`report`: all that somebody who is to help wants to see, in one go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from leveret.cli.ctl.base.command import Command, Failed, Given, Message, Output
from leveret.cli.ctl.base.formatters import lines
from leveret.cli.ctl.metadata import policies_and_limits, users
from leveret.cli.ctl.nodes import cluster, runtime
from leveret.cli.ctl.queues import listings
from leveret.node.admin.common import listing_columns as columns

if TYPE_CHECKING:
    from leveret.cli.ctl.base.command import Run
    from leveret.cli.ctl.base.session import Session

# In RabbitMQ's order: of the node, then of each vhost.
OF_NODE: Final[tuple[tuple[Run, tuple[str, ...]], ...]] = (
    (cluster.status, ()),
    (cluster.cluster_status, ()),
    (runtime.environment, ()),
    (listings.list_connections, columns.CONNECTIONS),
    (listings.list_channels, columns.CHANNELS),
)
OF_VHOST: Final[tuple[tuple[Run, tuple[str, ...]], ...]] = (
    (listings.list_queues, columns.QUEUES),
    (listings.list_exchanges, columns.EXCHANGES),
    (listings.list_bindings, columns.BINDINGS),
    (listings.list_consumers, columns.CONSUMERS_SHOWN),
    (users.list_permissions, ()),
    (policies_and_limits.list_policies, ()),
    (policies_and_limits.list_parameters, ()),
)


def report(session: Session, given: Given) -> Output:
    session.banner(f"Reporting server status of node {session.name} ...", now=True)
    for run, names in OF_NODE:
        _part(session, run, Given(list(names), {}))
    for (vhost,) in list(session.rows("list_vhosts", ("name",)).rows):
        for run, names in OF_VHOST:
            _part(session, run, Given(list(names), {"vhost": vhost}))
    return Message("\nEnd of server status report.")


def _part(session: Session, run: Run, given: Given) -> None:
    """One list. A node that does not know one thing may well know the next."""
    speak = session.speak_by(print)  # Each list is headed by what it is, also if the report is to be quiet.
    try:
        print()
        for line in _told(session, run, given):
            print(line)
    finally:
        session.speak_by(speak)


def _told(session: Session, run: Run, given: Given) -> Iterator[str]:
    try:
        output = run(session, given)
        session.show_banner()
        yield from lines(output, "table", session.name, True, session.bold)
    except Failed as failed:
        session.show_banner()
        yield f"(not available: {failed.text})"


COMMANDS: Final = (
    Command(
        "report", "Monitoring, observability and health checks", "[--timeout <timeout>]",
        "Generates a server status report containing a concatenation of all server status information for support "
        "purposes",
        "leveretctl report > report.txt", report,
        more="Contains status, cluster, settings (without passwords and cookies), connections, channels, and of each "
        "virtual host its queues, exchanges, bindings, consumers, permissions, policies and parameters. It contains "
        "names, but no messages.",
    ),
)  # fmt: skip
