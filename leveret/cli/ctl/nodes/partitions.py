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
        lines.append(f"Does not go on by itself: {waiting['doubt']}")
    if waiting["command"]:
        lines.append(f"To go on without it: {waiting['command']}. What that costs: {waiting['cost']}")
    return lines


def local_lines(seen: dict[str, Any]) -> list[str]:
    """One node's view."""
    whose = "as the configuration says" if seen["set_by"] == "configuration" else "set for the whole cluster"
    lines = [f"Partition handling: {handling_text(seen['handling'])}, {whose}"]
    if seen["paused_since_ms"] is not None:
        lines.append(f"Paused since {since_text(seen['paused_since_ms'])}: {seen['pause_reason']}")
    lines += [f"Out of contact: {lost_text(one)}" for one in seen["unreachable"]]
    if seen.get("waiting_for"):
        lines += waiting_lines(seen["waiting_for"])
    kept = seen.get("spooled", {})  # A node of an older version does not tell.
    if kept.get("queues"):
        lines.append(
            f"Kept for {kept['queues']} queues that could not be reached: {kept['messages']} messages, the first for "
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
    text = f"Partitions are handled by {handling_text(answer['handling'])} from now on, by all nodes"
    if answer["unknown_nodes"]:
        text += f"\nNot members of the cluster, and without effect as long: {', '.join(answer['unknown_nodes'])}"
    return Report(answer, text)


def clear_partition_handling(session: Session, given: Given) -> Output:
    session.banner("Clearing cluster_partition_handling ...")
    answer = session.ask("clear_partition_handling")
    text = f"Each node does as its configuration says; {session.name}: {handling_text(answer['handling'])}"
    return Report(answer, text)


def partition_status(session: Session, given: Given) -> Output:
    session.banner(f"Partition status of node {session.name} ...")
    answer = session.ask("local_partition")
    return Report(answer, "\n".join(local_lines(answer)))


def go_on_alone(session: Session, given: Given) -> Output:
    session.banner(f"Making node {session.name} go on alone ...", now=True)
    answer = session.ask("go_on_alone")
    text = (
        f"Node {session.name} goes on alone. {answer['removed']} is no member any more: reset it before it joins again"
    )
    return Report(answer, text)


def recover_partition(session: Session, given: Given) -> Output:
    session.banner(f"Trying the links of node {session.name} again ...", now=True)
    answer = session.ask("recover_partition")
    return Report(answer, "\n".join(_recovered(answer)))


def _recovered(answer: dict[str, Any]) -> list[str]:
    before, now = answer["before"], answer["now"]
    missing = [one["node"] for one in now["unreachable"]]
    back = [name for name in answer["dialed"] if name not in missing]
    lines = [f"Dialed: {', '.join(answer['dialed']) or 'nobody, all nodes are in contact'}"]
    if back:
        lines.append(f"Back in contact: {', '.join(back)}")
    lines += local_lines(now)
    if before["paused_since_ms"] is not None and now["paused_since_ms"] is None:
        lines.append("The node was paused, and serves clients again")
    elif now["paused_since_ms"] is not None and missing:
        lines.append(
            "The node will resume by itself once those are in contact that it needs. If they will never return, see: "
            f"leveretctl help {'go_on_alone' if (now.get('waiting_for') or {}).get('command') else 'force_boot'}"
        )
    if not answer["has_majority"]:
        lines.append("No majority of the nodes is in contact: nothing can be declared, changed or promoted")
    queues = answer["queues"]
    lines.append(f"Queues out of reach: {len(queues) + answer['queues_left_off']}")
    for one in queues[:QUEUES_SHOWN]:
        lines.append(f" * {one['name']} in vhost {one['vhost']}, on {one['node']}: {one['advice']}")
    if len(queues) > QUEUES_SHOWN:
        lines.append(f" * and {len(queues) + answer['queues_left_off'] - QUEUES_SHOWN} more; --formatter json tells")
    return lines


COMMANDS: Final = (
    Command(
        "partition_status", CLUSTER, "[--timeout <timeout>]",
        "Displays how a node handles partitions, whom it cannot reach, and whether it is paused",
        "leveretctl partition_status", partition_status,
        more="cluster_status tells it of all nodes that can be reached.",
    ),
    Command(
        "go_on_alone", CLUSTER, "",
        "Makes a running node go on without the other one of two, which is gone",
        "leveretctl -n two@localhost go_on_alone", go_on_alone,
        more="For a node of two that waits for the other: the other one led the cluster, and nothing proves that it "
        "has ended. Be sure that it has, and will not be started. It is removed from the cluster, its queues without "
        "mirrors are out of reach, and it must be reset before it can join again. If it ran on after this node had "
        "lost it, then what it confirmed since is not here. With more nodes than two, see force_boot.",
    ),
    Command(
        "recover_partition", CLUSTER, "[--timeout <timeout>]",
        "Makes a node try its links at once, and tells what is left to do",
        "leveretctl -n two@localhost recover_partition", recover_partition,
        more="Links are tried again by themselves, at most some seconds apart; this is for who has just mended the "
        "network. For each queue out of reach it tells what will happen by itself and what an operator can do.",
    ),
    Command(
        "set_partition_handling", CONFIGURATION,
        "<strategy> [--nodes <node1,node2>] [--recover <ignore|autoheal>]",
        "Sets cluster_partition_handling for all nodes, at once and for good",
        "leveretctl set_partition_handling pause_if_all_down --nodes one@localhost,two@localhost --recover autoheal",
        set_partition_handling, 1, 1, {"nodes": "list", "recover": "mode"},
        more="Strategies: pause_minority, stop_processing (the same), pause_if_all_down (with --nodes and --recover), "
        "ignore, autoheal, autoupgrade (autoheal). It takes a majority, and overrides the configuration of all nodes.",
    ),
    Command(
        "clear_partition_handling", CONFIGURATION, "",
        "Goes back to what the configuration of each node says of partitions",
        "leveretctl clear_partition_handling", clear_partition_handling,
    ),
)  # fmt: skip
