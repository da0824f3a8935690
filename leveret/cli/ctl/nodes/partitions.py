"""Commands about partitions: how nodes handle them, how they are now, and what an operator can do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from leveret.cli.ctl.base.command import Command, Given, Output, Report
from leveret.cli.ctl.nodes.cluster import CLUSTER, CONFIGURATION

if TYPE_CHECKING:
    from leveret.cli.ctl.base.session import Session

QUEUES_SHOWN: Final = 50


def handling_text(handling: dict[str, Any]) -> str:
    if "nodes" not in handling:
        return str(handling["strategy"])
    return f"{handling['strategy']} (nodes: {', '.join(handling['nodes'])}; recover: {handling['recover']})"


def since_text(since_ms: int) -> str:
    import datetime  # Not before it is needed: help is to come at once.

    return datetime.datetime.fromtimestamp(since_ms / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def lost_text(lost: dict[str, Any]) -> str:
    return f"{lost['node']} since {since_text(lost['since_ms'])} ({lost['reason']})"


def waiting_lines(waiting: dict[str, Any]) -> list[str]:
    """Say what a node without a majority waits for, and how to go on."""
    lines = [f"Waits for: {', '.join(waiting['nodes'])}"]
    if waiting["doubt"]:
        lines.append(f"Does not continue by itself: {waiting['doubt']}")
    if waiting["command"]:
        lines.append(f"To continue without it: {waiting['command']}. Consequence: {waiting['cost']}")
    return lines


def detached_lines(served: dict[str, Any]) -> list[str]:
    """Say what a node delivers from its copies, and what it has still to tell their masters."""
    lines = []
    if served.get("queues"):
        names = [one["name"] for one in served.get("served", ())[:QUEUES_SHOWN]]
        more = ", …" if len(names) < served["queues"] else ""
        lines.append(
            f"Serves {served['queues']} queues from its copies, whose masters it cannot reach: "
            f"{served['messages']} messages are ready ({', '.join(names)}{more})"
        )
    if served.get("settled"):
        lines.append(f"Acknowledged or rejected here, and not known to the master: {served['settled']} messages")
    return lines


def local_lines(seen: dict[str, Any]) -> list[str]:
    """One node's view."""
    whose = "from the configuration" if seen["set_by"] == "configuration" else "set for the whole cluster"
    lines = [f"Partition handling: {handling_text(seen['handling'])}, {whose}"]
    if seen["paused_since_ms"] is not None:
        lines.append(f"Paused since {since_text(seen['paused_since_ms'])}: {seen['pause_reason']}")
    lines += [f"Out of contact: {lost_text(one)}" for one in seen["unreachable"]]
    if seen.get("waiting_for"):
        lines += waiting_lines(seen["waiting_for"])
    lines += detached_lines(seen.get("detached", {}))  # A node of an older version does not tell.
    kept = seen.get("spooled", {})
    if kept.get("queues"):
        lines.append(
            f"Spooled for {kept['queues']} unreachable queues: {kept['messages']} messages, the oldest for "
            f"{kept['oldest']} s; {kept['bytes']} of {kept['limit']} bytes ({', '.join(kept['alarms'])}). See: "
            "leveretctl list_spools"
        )
    return lines


# -- Commands ------------------------------------------------------------------------------------------------------


def set_partition_handling(session: Session, given: Given) -> Output:
    strategy = given.words[0]
    session.banner(f"Setting cluster_partition_handling to {strategy} ...")
    recover = given.text("recover", "") or None
    arguments = {"strategy": strategy, "nodes": given.texts("nodes"), "recover": recover}
    answer = session.ask("set_partition_handling", arguments)
    text = f"All nodes now handle partitions with {handling_text(answer['handling'])}"
    if answer["unknown_nodes"]:
        text += f"\nNot members of the cluster, so without effect: {', '.join(answer['unknown_nodes'])}"
    return Report(answer, text)


def clear_partition_handling(session: Session, given: Given) -> Output:
    session.banner("Clearing cluster_partition_handling ...")
    answer = session.ask("clear_partition_handling")
    text = f"Each node uses its configuration; {session.name}: {handling_text(answer['handling'])}"
    return Report(answer, text)


def partition_status(session: Session, given: Given) -> Output:
    session.banner(f"Partition status of node {session.name} ...")
    answer = session.ask("local_partition")
    return Report(answer, "\n".join(local_lines(answer)))


def go_on_alone(session: Session, given: Given) -> Output:
    session.banner(f"Making node {session.name} continue alone ...", now=True)
    answer = session.ask("go_on_alone")
    text = (
        f"Node {session.name} continues alone. {answer['removed']} was removed: reset it before it joins again"
    )
    return Report(answer, text)


def recover_partition(session: Session, given: Given) -> Output:
    session.banner(f"Retrying the links of node {session.name} ...", now=True)
    answer = session.ask("recover_partition")
    return Report(answer, "\n".join(_recovered(answer)))


def _recovered(answer: dict[str, Any]) -> list[str]:
    before, now = answer["before"], answer["now"]
    missing = [one["node"] for one in now["unreachable"]]
    back = [name for name in answer["dialed"] if name not in missing]
    lines = [f"Dialed: {', '.join(answer['dialed']) or 'no node, all are in contact'}"]
    if back:
        lines.append(f"Back in contact: {', '.join(back)}")
    lines += local_lines(now)
    if before["paused_since_ms"] is not None and now["paused_since_ms"] is None:
        lines.append("The node was paused, and serves clients again")
    elif now["paused_since_ms"] is not None and missing:
        lines.append(
            "The node resumes by itself when enough nodes are in contact. If they will never return, see: "
            f"leveretctl help {'go_on_alone' if (now.get('waiting_for') or {}).get('command') else 'force_boot'}"
        )
    if not answer["has_majority"]:
        lines.append("There is no contact with a majority: nothing can be declared, changed or promoted")
    queues = answer["queues"]
    lines.append(f"Unreachable queues: {len(queues) + answer['queues_left_off']}")
    for one in queues[:QUEUES_SHOWN]:
        lines.append(f" * {one['name']} in vhost {one['vhost']}, on {one['node']}: {one['advice']}")
    if len(queues) > QUEUES_SHOWN:
        lines.append(f" * and {len(queues) + answer['queues_left_off'] - QUEUES_SHOWN} more; see --formatter json")
    return lines


COMMANDS: Final = (
    Command(
        "partition_status", CLUSTER, "[--timeout <timeout>]",
        "Displays how a node handles partitions, which nodes it cannot reach, and whether it is paused",
        "leveretctl partition_status", partition_status,
        more="cluster_status shows the same for all nodes that can be reached.",
    ),
    Command(
        "go_on_alone", CLUSTER, "",
        "Makes one of two nodes continue without the other one, which is lost",
        "leveretctl -n two@localhost go_on_alone", go_on_alone,
        more="For a node that waits for the other one of two: the other one was the Raft leader, and nothing proves "
        "that it has ended. Be sure that it has ended, and will not be started. It is removed from the cluster, its "
        "queues without mirrors are unavailable, and it must be reset before it can join again. If it was still "
        "running after this node had lost it, what it confirmed since then is not here. With more than two nodes, "
        "see force_boot.",
    ),
    Command(
        "recover_partition", CLUSTER, "[--timeout <timeout>]",
        "Makes a node retry its links at once, and lists what is left to do",
        "leveretctl -n two@localhost recover_partition", recover_partition,
        more="Nodes retry their links every few seconds; use this command after you have repaired the network. For "
        "each unreachable queue it shows what will happen without intervention and what you can do.",
    ),
    Command(
        "set_partition_handling", CONFIGURATION,
        "<strategy> [--nodes <node1,node2>] [--recover <ignore|autoheal>]",
        "Sets cluster_partition_handling for all nodes, at once and permanently",
        "leveretctl set_partition_handling pause_if_all_down --nodes one@localhost,two@localhost --recover autoheal",
        set_partition_handling, 1, 1, {"nodes": "list", "recover": "mode"},
        more="Strategies: pause_minority, stop_processing (the same), pause_if_all_down (with --nodes and "
        "--recover), ignore, autoheal, autoupgrade (the same as autoheal). This needs a majority, and overrides the "
        "configuration of all nodes.",
    ),
    Command(
        "clear_partition_handling", CONFIGURATION, "",
        "Returns to the partition handling that each node's configuration sets",
        "leveretctl clear_partition_handling", clear_partition_handling,
    ),
)  # fmt: skip
