"""Commands for mirrored queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from leveret.base.control_protocol import PLAIN
from leveret.base.exit_codes import UNAVAILABLE, USAGE
from leveret.cli.ctl.base.command import VHOST, Command, Failed, Given, Message, Output, Report
from leveret.node.admin.common import listing_columns as columns

if TYPE_CHECKING:
    from leveret.cli.ctl.base.session import Session

MIRRORS: Final = "Mirrored queues"
AWAIT_MIRROR_S: Final = 120.0
SYNC_S: Final = 86_400.0  # A long queue takes its time, and rabbitmqctl would wait for ever.
SYNC_COLUMNS: Final = ("node", "role", "state", "messages", "lag_messages")
SYNCING: Final = "syncing"
UNSYNCHRONISED: Final = "unsynchronised"
SYNCHRONISED: Final = "synchronised"
NOT_ORDERED: Final = " It was not synchronised, and no synchronisation was started (see: leveretctl help sync_queue)."


def _queue(given: Given) -> dict[str, Any]:
    return {"vhost": given.vhost, "name": given.words[0]}


# -- Synchronising -------------------------------------------------------------------------------------------------


def sync_queue(session: Session, given: Given) -> Output:
    session.banner(f"Synchronising queue '{given.words[0]}' in vhost '{given.vhost}' ...", now=True)
    session.ask("sync_queue", _queue(given))
    if not given.flag("no-wait"):
        _follow_sync(session, given)
    return None


def _follow_sync(session: Session, given: Given) -> None:
    """Until no mirror is being filled any more, telling how far each is. Raises Failed if one was left unfilled."""
    asked = {"vhost": given.vhost, "only": given.words[0]}
    totals: dict[str, int] = {}
    try:
        while True:
            rows = list(session.rows("mirror_status_rows", SYNC_COLUMNS, asked, SYNC_S).rows)
            syncing = [row for row in rows if row[2] == SYNCING]  # The master says so before its mirrors begin.
            for node, role, state, has, lacks in rows:
                if role == "mirror" and state == SYNCING and isinstance(has, int) and isinstance(lacks, int):
                    totals[node] = has + lacks
                    session.progress.tell(f"{has} of {has + lacks}", node)
                elif state == SYNCHRONISED and node in totals:
                    session.progress.tell(f"{totals[node]} of {totals[node]}", node)
            if not syncing:
                break
            session.pause(SYNC_S)
    finally:
        session.progress.end()
    left = [row[0] for row in rows if row[2] == UNSYNCHRONISED]
    if left:
        raise Failed(UNAVAILABLE, f"synchronising was stopped; not synchronised: {', '.join(left)}")


def cancel_sync_queue(session: Session, given: Given) -> Output:
    session.banner(f"Stopping synchronising queue '{given.words[0]}' in vhost '{given.vhost}' ...")
    was_syncing = session.ask("cancel_sync_queue", _queue(given))["syncing"]
    return None if was_syncing else Message("not_syncing")


# -- Who has a copy, and who leads ---------------------------------------------------------------------------------


def add_queue_mirror_link(session: Session, given: Given) -> Output:
    source, node = given.words
    session.banner(f"Adding a mirror of queue '{source}' in vhost '{given.vhost}' on node {node} ...")
    session.ask("add_queue_mirror_link", {"vhost": given.vhost, "source": source, "node": node})
    return None


def remove_queue_mirror_link(session: Session, given: Given) -> Output:
    source, node = given.words
    session.banner(f"Removing the mirror of queue '{source}' in vhost '{given.vhost}' on node {node} ...")
    session.ask("remove_queue_mirror_link", {"vhost": given.vhost, "source": source, "node": node})
    return None


def move_queue_master(session: Session, given: Given) -> Output:
    name, node = given.words
    session.banner(f"Moving the master of queue '{name}' in vhost '{given.vhost}' to node {node} ...", now=True)
    session.ask_with_progress("move_queue_master", {**_queue(given), "node": node})
    return None


def promote_queue(session: Session, given: Given) -> Output:
    name = given.words[0]
    node = given.words[1] if len(given.words) > 1 else session.name
    session.banner(f"Promoting the copy of queue '{name}' in vhost '{given.vhost}' on node {node} by force ...")
    answer = session.ask("promote_queue", {**_queue(given), "node": node, "confirmed": given.flag("yes")})
    if not answer["done"]:
        raise Failed(USAGE, f"{_would_lose(answer, node)}\nTo do it anyway, add --yes.")
    return Report(answer, f"Node {node} is now the master, with {answer['messages']} messages.\n{_lost(answer)}")


def _would_lose(answer: dict[str, Any], node: str) -> str:
    lines = [f"The copy on node {node} has {answer['messages']} messages.{_filled(answer)}"]
    if answer["lost"] is None:
        lines.append("How many it lacks is not known: no synchronised copy answers.")
    else:
        lines.append(f"{answer['lost']} messages of other copies would be lost.")
    if answer["unreachable"]:
        lines.append(f"What only {', '.join(answer['unreachable'])} had would be lost, even if they come back.")
    others = [name for name in answer["synchronised"] if name != node]
    if others:
        lines.append(f"Running synchronised copies: {', '.join(others)}. Promoting one of these would lose nothing.")
    return "\n".join(lines)


def _lost(answer: dict[str, Any]) -> str:
    count = "an unknown number of" if answer["lost"] is None else answer["lost"]
    only = f", which only {', '.join(answer['unreachable'])} had" if answer["unreachable"] else ""
    if answer["lost"] == 0 and not only:
        return "Nothing was lost."
    return f"Lost: {count} messages{only}.{_filled(answer)}"


def _filled(answer: dict[str, Any]) -> str:
    if answer["complete"]:
        return ""
    if not answer["filling"]:
        return NOT_ORDERED
    return f" It was being synchronised: {100 * answer['sync_done'] // (answer['sync_total'] or 1)} % done."


# -- How they are --------------------------------------------------------------------------------------------------


def mirror_status(session: Session, given: Given) -> Output:
    only = given.words[0] if given.words else None
    vhost = given.vhost if only is not None or "vhost" in given.switches else None
    what = f"queue '{only}' in vhost '{vhost}'" if only else "all mirrored queues"
    session.banner(f"Copies of {what} ...")
    wanted = given.texts("columns") or columns.MIRRORS_SHOWN
    unknown = sorted(set(wanted).difference(columns.MIRRORS))
    if unknown:
        raise Failed(USAGE, f"Info key(s) {','.join(unknown)} are not supported", "validation")
    return session.rows("mirror_status_rows", tuple(wanted), {"vhost": vhost, "only": only})


def check_if_node_is_mirror_sync_critical(session: Session, given: Given) -> Output:
    session.banner(f"Checking if node {session.name} is critical for data safety of any classic mirrored queues ...")
    answer = session.ask("mirror_sync_critical")
    if answer["single"]:
        text = "seems to be the only one in a single node cluster, the check does not apply"
        return Message(f"Node {session.name} {text}")
    if answer["queues"]:
        raise Failed(UNAVAILABLE, "\n".join(_critical(one, session.name) for one in answer["queues"]), PLAIN)
    return Message(f"Node {session.name} reported no classic mirrored queues without online synchronised mirrors")


def _critical(queue: dict[str, str], node: str) -> str:
    called = f"queue '{queue['name']}' in vhost '{queue['vhost']}'"
    return f"{called} would lose its only synchronised replica (master) if node {node} is stopped"


def await_online_synchronized_mirror(session: Session, given: Given) -> Output:
    timeout_s = session.timeout_s(AWAIT_MIRROR_S)
    session.banner(
        "Will wait for a synchronised mirror be online for all classic mirrored queues for "
        f"{round(timeout_s)} seconds..."
    )
    while True:
        answer = session.ask("mirror_sync_critical", patience_s=AWAIT_MIRROR_S)
        if answer["single"]:
            text = "Target node seems to be the only one in a single node cluster, the command does not apply"
            return None if given.flag("quiet") or given.flag("silent") else Message(text)
        if not answer["queues"]:
            return None
        if session.left_s(AWAIT_MIRROR_S) < 0.2:
            text = "time is up, no synchronised mirror came online for at least some classic mirrored queues"
            raise Failed(UNAVAILABLE, text)
        session.pause(AWAIT_MIRROR_S)


COMMANDS: Final = (
    Command(
        "add_queue_mirror_link", MIRRORS, "[--vhost <vhost>] <queue> <node>",
        "Creates a mirror of a queue on a node, whatever its policy says",
        "leveretctl add_queue_mirror_link orders two@localhost", add_queue_mirror_link, 2, 2, VHOST,
        more="The queue is given by its name, or by its pid as list_queues shows it. The mirror is synchronised "
        "while the queue is in use; see: leveretctl mirror_status orders. It stays when the policy changes, until "
        "remove_queue_mirror_link, or until the queue is deleted.",
    ),
    Command(
        "await_online_synchronized_mirror", MIRRORS, "[--timeout <timeout>]",
        "Waits for all classic mirrored queues hosted on the target node to have at least one synchronized mirror "
        "online. This makes sure that if target node is shut down, there will be an up-to-date mirror to promote",
        "leveretctl -n one@localhost await_online_synchronized_mirror && leveretctl -n one@localhost stop",
        await_online_synchronized_mirror,
    ),
    Command(
        "cancel_sync_queue", MIRRORS, "[--vhost <vhost>] <queue>",
        "Instructs a synchronising mirrored queue to stop synchronising itself",
        "leveretctl cancel_sync_queue orders", cancel_sync_queue, 1, 1, VHOST,
    ),
    Command(
        "check_if_node_is_mirror_sync_critical", MIRRORS, "[--timeout <timeout>]",
        "Health check that exits with a non-zero code if there are classic mirrored queues without online synchronised "
        "mirrors (queues that would potentially lose data if the target node is shut down)",
        "leveretctl -n one@localhost check_if_node_is_mirror_sync_critical", check_if_node_is_mirror_sync_critical,
    ),
    Command(
        "mirror_status", MIRRORS, "[--vhost <vhost>] [<queue>] [--columns <column>,...]",
        "Lists the copies of mirrored queues: the master, the synchronised mirrors, the lag of the others",
        "leveretctl mirror_status orders --columns node,state,sync_done,sync_total", mirror_status, 0, 1,
        {**VHOST, "columns": "columns"},
        more=f"Columns: {', '.join(columns.MIRRORS)}. A lag is what a mirror does not have on disk yet; it is "
        "empty if the mirror is down. Without a queue and without --vhost, all mirrored queues are listed.",
    ),
    Command(
        "move_queue_master", MIRRORS, "[--vhost <vhost>] <queue> <node>",
        "Makes another node the master of a queue; no message is lost",
        "leveretctl move_queue_master orders two@localhost", move_queue_master, 2, 2, VHOST,
        more="The master of a mirrored queue moves to a node with a synchronised mirror, within milliseconds. A "
        "queue without mirrors is moved with all its messages, while it is in use.",
    ),
    Command(
        "promote_queue", MIRRORS, "[--vhost <vhost>] <queue> [<node>] [--yes]",
        "Makes a copy the master although it lacks messages, which are then lost",
        "leveretctl -n two@localhost promote_queue orders", promote_queue, 1, 2, {**VHOST, "yes": None},
        more="Use it when no synchronised copy is left, or none will come back. Without --yes it only shows what "
        "would be lost. Without a node, it promotes the copy on the node that is asked.",
    ),
    Command(
        "remove_queue_mirror_link", MIRRORS, "[--vhost <vhost>] <queue> <node>",
        "Removes a mirror that was created with add_queue_mirror_link",
        "leveretctl remove_queue_mirror_link orders two@localhost", remove_queue_mirror_link, 2, 2, VHOST,
    ),
    Command(
        "sync_queue", MIRRORS, "[--vhost <vhost>] <queue> [--no-wait]",
        "Instructs a mirrored queue with unsynchronised mirrors (follower replicas) to synchronise them",
        "leveretctl sync_queue orders", sync_queue, 1, 1, {**VHOST, "no-wait": None},
        more="The queue can be used meanwhile. The command reports the progress of each mirror and returns when all "
        "have all messages; with --no-wait it returns at once. Ctrl-C ends only the report; to stop synchronising "
        "see: leveretctl help cancel_sync_queue",
    ),
)  # fmt: skip
