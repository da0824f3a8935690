"""Commands about shovels, with RabbitMQ's names and texts where it has them. See docs/shovel.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.base.control_protocol import VALIDATION
from leveret.base.exit_codes import DATA_ERROR
from leveret.cli.ctl.base.command import VHOST, Command, Failed, Given, Output, Report, Rows
from leveret.cli.ctl.queues.listings import OPERATIONS

if TYPE_CHECKING:
    from leveret.cli.ctl.base.session import Session

SHOVELS: Final = "Shovels"
NAMED: Final = "[--vhost <vhost>] <name>"
# RabbitMQ's columns in its order, then ours. Each is a key of what the node answers.
COLUMNS: Final = {
    "destination": "dest_uri", "last_changed": "timestamp", "name": "name", "source": "src_uri", "state": "state",
    "termination_reason": "reason", "type": "type", "vhost": "vhost", "node": "node", "forwarded": "forwarded",
    "pending": "pending", "remaining": "remaining", "next_attempt": "next_attempt",
}  # fmt: skip
MORE: Final = {
    "bytes": "bytes", "source_protocol": "src_protocol", "source_queue": "src_queue",
    "source_exchange": "src_exchange", "source_exchange_key": "src_exchange_key",
    "destination_protocol": "dest_protocol", "destination_queue": "dest_queue",
    "destination_exchange": "dest_exchange", "destination_exchange_key": "dest_exchange_key",
}  # fmt: skip


def shovel_status(session: Session, given: Given) -> Output:
    session.banner(f"Shovel status on node {session.name}")
    columns = {**COLUMNS, **MORE} if given.text("formatter", "") == "json" else COLUMNS
    found = session.ask("shovel_status")
    empty = "" if columns is COLUMNS else None
    rows = [[empty if one.get(key) is None else one[key] for key in columns.values()] for one in found]
    return Rows(tuple(columns), rows)


def _asked(session: Session, given: Given) -> dict[str, str]:
    return {"vhost": given.vhost, "name": given.words[0]}


def delete_shovel(session: Session, given: Given) -> Output:
    session.banner(f"Deleting shovel {given.words[0]} in vhost {given.vhost}")
    session.ask("delete_shovel", _asked(session, given))
    return None


def restart_shovel(session: Session, given: Given) -> Output:
    where = f"in virtual host {given.vhost} on node {session.name}"
    session.banner(f"Restarting dynamic Shovel {given.words[0]} {where}")
    session.ask("restart_shovel", _asked(session, given))
    return None


def pause_shovel(session: Session, given: Given) -> Output:
    session.banner(f"Pausing shovel {given.words[0]} in vhost {given.vhost} ...")
    session.ask("pause_shovel", {**_asked(session, given), "paused": True})
    return None


def resume_shovel(session: Session, given: Given) -> Output:
    session.banner(f"Resuming shovel {given.words[0]} in vhost {given.vhost} ...")
    session.ask("pause_shovel", {**_asked(session, given), "paused": False})
    return None


def move_messages(session: Session, given: Given) -> Output:
    queue, to = given.words
    count = given.switches.get("count")
    if count is not None and not str(count).isdecimal():
        raise Failed(DATA_ERROR, "Bad argument: --count must be a number of messages", VALIDATION)
    uri = given.switches.get("to-uri")
    session.banner(f"Moving messages of queue '{queue}' in vhost '{given.vhost}' to queue '{to}' ...", now=True)
    asked = {
        "vhost": given.vhost, "queue": queue, "to": to, "uri": None if uri is None else str(uri),
        "count": None if count is None else int(str(count)),
    }  # fmt: skip
    done = session.ask_with_progress("move_messages", asked)
    return Report(done, f"{done['forwarded']} messages were moved")


COMMANDS: Final = (
    Command(
        "shovel_status", SHOVELS, "", "Displays status of Shovel on a node", "leveretctl shovel_status",
        shovel_status,
        more="state: starting, running, flow (the destination takes no more for now), blocked (it has an alarm), "
        "paused or terminated; termination_reason and next_attempt tell why it does not run, and when it tries again; "
        "pending: published and not confirmed; remaining: until it ends by itself. With --formatter json there are "
        "further columns.",
    ),
    Command(
        "delete_shovel", SHOVELS, NAMED, "Deletes a Shovel", "leveretctl delete_shovel nightly", delete_shovel, 1, 1,
        VHOST,
    ),
    Command(
        "restart_shovel", SHOVELS, NAMED, "Restarts a dynamic Shovel", "leveretctl restart_shovel nightly",
        restart_shovel, 1, 1, VHOST,
    ),
    Command(
        "pause_shovel", SHOVELS, NAMED, "Stops a shovel until it is resumed, also over restarts",
        "leveretctl pause_shovel nightly", pause_shovel, 1, 1, VHOST,
    ),
    Command(
        "resume_shovel", SHOVELS, NAMED, "Lets a paused shovel go on", "leveretctl resume_shovel nightly",
        resume_shovel, 1, 1, VHOST,
    ),
    Command(
        "move_messages", OPERATIONS, "[--vhost <vhost>] [--to-uri <uri>] [--count <messages>] <queue> <to_queue>",
        "Moves messages from a queue to another one, here or at another broker",
        "leveretctl move_messages orders.dead orders", move_messages, 2, 2,
        {**VHOST, "to-uri": "uri", "count": "messages"},
        more="Without --count, as many messages as the queue has at the beginning. It is done by a shovel that ends "
        "itself and goes on if this command is interrupted; if it fails, it is removed.",
    ),
)  # fmt: skip
