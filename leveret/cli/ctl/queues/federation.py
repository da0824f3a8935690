"""Commands about federation links, with RabbitMQ's names and texts. See docs/federation.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.cli.ctl.base.command import Command, Given, Output, Rows

if TYPE_CHECKING:
    from leveret.cli.ctl.base.session import Session

FEDERATION: Final = "Federation"
UP: Final = ("running", "starting")
# RabbitMQ's columns in its order, then ours. Each is a key of what the node answers.
COLUMNS: Final = {
    "error": "error", "exchange": "exchange", "id": "id", "last_changed": "timestamp",
    "local_connection": "local_connection", "queue": "queue", "status": "status", "type": "type",
    "upstream": "upstream", "upstream_exchange": "upstream_exchange", "upstream_queue": "upstream_queue", "uri": "uri",
    "vhost": "vhost", "node": "node", "next_attempt": "next_attempt", "forwarded": "forwarded", "note": "note",
}  # fmt: skip
MORE: Final = {"consumer_tag": "consumer_tag", "dropped": "dropped", "pending": "pending", "bytes": "bytes"}


def federation_status(session: Session, given: Given) -> Output:
    only_down = given.flag("only-down")
    what = "federation links which are down" if only_down else "federation links"
    session.banner(f"Listing {what} on node {session.name}...")
    found = session.ask("federation_status")
    columns = {**COLUMNS, **MORE} if given.text("formatter", "") == "json" else COLUMNS
    rows = [
        ["" if one.get(key) is None else one[key] for key in columns.values()]
        for one in found
        if not only_down or one["status"] not in UP
    ]
    return Rows(tuple(columns), rows)


def restart_federation_link(session: Session, given: Given) -> Output:
    session.banner(f"Restarting federation link {given.words[0]} on node {session.name}")
    session.ask("restart_federation_link", {"id": given.words[0]})
    return None


COMMANDS: Final = (
    Command(
        "federation_status", FEDERATION, "[--only-down]", "Displays federation link status",
        "leveretctl federation_status --only-down", federation_status, switches={"only-down": None},
    ),
    Command(
        "restart_federation_link", FEDERATION, "<link_id>", "Restarts a running federation link",
        "leveretctl restart_federation_link 1f2e3d4c", restart_federation_link, 1, 1,
    ),
)  # fmt: skip
