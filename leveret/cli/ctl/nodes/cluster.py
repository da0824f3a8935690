"""Commands for nodes and clusters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from leveret.base.control_protocol import ONE_LINE, VALIDATION
from leveret.base.exit_codes import DATA_ERROR, SOFTWARE, UNAVAILABLE, USAGE
from leveret.cli.ctl.base.command import Command, Failed, Given, Message, Output, Report

if TYPE_CHECKING:
    from leveret.cli.ctl.base.session import Session

NODES: Final = "Nodes"
CLUSTER: Final = "Cluster"
MONITORING: Final = "Monitoring, observability and health checks"
CONFIGURATION: Final = "Configuration and Environment"

AWAIT_S: Final = 300.0


# -- The process and the application -------------------------------------------------------------------------------


def ping(session: Session, given: Given) -> Output:
    timeout_ms = int(session.timeout_s(60) * 1000)
    session.banner(
        f"Will ping {session.name}. This only checks if the OS process is running and its cluster port answers. "
        f"Timeout: {timeout_ms} ms."
    )
    session.ask("ping")
    return Message("Ping succeeded")


def stop(session: Session, given: Given) -> Output:
    from leveret.node.system import local_registry

    session.banner(f"Stopping and halting node {session.name} ...", now=True)
    session.ask("stop")
    entry = session.target.entry
    while entry is not None and local_registry.is_running(entry):
        session.pause(AWAIT_S)
    return None


def stop_app(session: Session, given: Given) -> Output:
    session.banner(f"Stopping leveret application on node {session.name} ...", now=True)
    session.ask_for_life("stop_app")
    return None


def start_app(session: Session, given: Given) -> Output:
    session.banner(f"Starting node {session.name} ...", now=True)
    session.ask_for_life("start_app")
    return None


def await_startup(session: Session, given: Given) -> Output:
    while True:
        state = session.ask("app_state", patience_s=AWAIT_S)
        if state["running"]:
            return None
        if not state["starting"]:
            raise Failed(UNAVAILABLE, "leveret_is_not_running")
        session.pause(AWAIT_S)


def check_running(session: Session, given: Given) -> Output:
    session.banner(f"Checking if Leveret is running on node {session.name} ...")
    state = session.ask("app_state")
    if not state["running"]:
        why = f": {state['waiting']}" if state.get("waiting") else ""
        raise Failed(UNAVAILABLE, f"Leveret on node {session.name} is not running or has not fully booted yet{why}")
    if state["paused"]:
        raise Failed(UNAVAILABLE, f"Leveret on node {session.name} is paused and serves no clients: {state['paused']}")
    return Message(f"Leveret on node {session.name} is fully booted and running")


# -- Erlang --------------------------------------------------------------------------------------------------------


def _has_all_nodes(session: Session) -> str:
    """Tells whether as many nodes run as the cluster is to have, as RabbitMQ's cluster operator asks."""
    hint = int(session.ask("environment")["config"].get("cluster_formation.target_cluster_size_hint", 1))
    found = session.ask("cluster_status")
    return str(len(found["running_nodes"]) >= max(hint, len(found["disk_nodes"]))).lower()


def _is_running(session: Session) -> str:
    return str(bool(session.ask("app_state")["running"])).lower()


# The expressions that scripts and operators of RabbitMQ's clusters ask for.
EXPRESSIONS: Final[dict[str, Callable[[Session], str]]] = {
    "rabbit_nodes:reached_target_cluster_size()": _has_all_nodes,
    "rabbit:is_running()": _is_running,
    "node()": lambda session: f"'{session.name}'",
}


def eval_(session: Session, given: Given) -> Output:
    asked = "".join(given.words).replace(" ", "").removesuffix(".")
    if asked not in EXPRESSIONS:
        raise Failed(
            USAGE,
            f"it runs Erlang code in the node, and here only answers {', '.join(EXPRESSIONS)}. To change a setting or "
            "set an alarm: leveretctl help set_env, set_alarm",
            ONE_LINE,
        )
    return Message(EXPRESSIONS[asked](session))


# -- Health --------------------------------------------------------------------------------------------------------


def check_local_alarms(session: Session, given: Given) -> Output:
    from leveret.cli.ctl.nodes.status_text import alarm_text

    session.banner(f"Asking node {session.name} to report any local resource alarms ...")
    alarms = session.ask("alarms")["alarms"]
    if alarms:
        lines = "\n".join(f" {alarm_text(alarm)}" for alarm in alarms)
        raise Failed(UNAVAILABLE, f"Local alarms reported on node {session.name}:\n\n{lines}")
    return Message(f"Node {session.name} reported no local alarms")


def status(session: Session, given: Given) -> Output:
    from leveret.cli.ctl.nodes import status_text

    session.banner(f"Status of node {session.name} ...")
    answer = session.ask("status")
    return Report(answer, status_text.status(answer, session.bold))


# -- Membership ----------------------------------------------------------------------------------------------------


def cluster_status(session: Session, given: Given) -> Output:
    from leveret.cli.ctl.nodes import status_text

    session.banner(f"Cluster status of node {session.name} ...")
    answer = session.ask("cluster_status")
    return Report(answer, status_text.cluster_status(answer, session.bold))


def join_cluster(session: Session, given: Given) -> Output:
    from leveret.cli.ctl.base.connect import parse_address

    if given.flag("ram"):
        raise Failed(USAGE, "every node stores its metadata on disk; there are no RAM nodes", VALIDATION)
    address = parse_address(given.words[0])
    session.banner(f"Clustering node {session.name} with {given.words[0]}")
    arguments = {"host": address.host, "port": address.port, "name": address.name}
    if session.ask_for_life("join_cluster", arguments)["already_member"]:
        return Message("The node is already a member of this cluster")
    return None


def forget_cluster_node(session: Session, given: Given) -> Output:
    if given.flag("offline"):
        raise Failed(
            USAGE,
            "--offline is not offered: without a majority, no node can know what the others agreed on. Start the nodes "
            "that are left; if the majority is lost for good, run force_boot on one and let the others join it again",
            VALIDATION,
        )
    session.banner(f"Removing node {given.words[0]} from the cluster")
    session.ask("forget_cluster_node", {"name": given.words[0]})
    return None


def rename_cluster_node(session: Session, given: Given) -> Output:
    if len(given.words) % 2:
        raise Failed(USAGE, "not enough arguments.", VALIDATION)
    for old, new in zip(given.words[::2], given.words[1::2], strict=True):
        session.banner(f"Renaming cluster node {old} to {new} ...")
        session.ask("rename_cluster_node", {"old": old, "new": new})
    return None


def reset(session: Session, given: Given) -> Output:
    session.banner(f"Resetting node {session.name} ...")
    session.ask_for_life("reset", {"force": False})
    return None


def force_reset(session: Session, given: Given) -> Output:
    session.banner(f"Forcefully resetting node {session.name} ...")
    session.ask_for_life("reset", {"force": True})
    return None


def force_boot(session: Session, given: Given) -> Output:
    session.ask("force_boot")
    return None


def await_online_nodes(session: Session, given: Given) -> Output:
    if not given.words[0].isdecimal() or int(given.words[0]) < 1:
        raise Failed(DATA_ERROR, "Bad argument: Argument must be a positive integer", VALIDATION)
    count = int(given.words[0])
    timeout_s = session.timeout_s(AWAIT_S)
    session.banner(
        f"Will wait for at least {count} nodes to join the cluster of {session.name}. Timeout: {timeout_s:g} seconds."
    )
    while len(session.ask("cluster_nodes", patience_s=AWAIT_S)["running"]) < count:
        if session.left_s(AWAIT_S) < 0.2:
            text = f"Error: timed out while waiting. Not enough nodes joined {session.name}'s cluster."
            raise Failed(SOFTWARE, text)
        session.pause(AWAIT_S)
    return None


def set_cluster_name(session: Session, given: Given) -> Output:
    session.banner(f"Setting cluster name to {given.words[0]} ...")
    session.ask("set_cluster_name", {"name": given.words[0]})
    return None


COMMANDS: Final = (
    Command(
        "eval", CONFIGURATION, "<expression>",
        "Answers a few Erlang expressions that scripts and operators of RabbitMQ's clusters use",
        "leveretctl eval 'rabbit_nodes:reached_target_cluster_size().'", eval_, 1, None,
        more=f"They are: {', '.join(EXPRESSIONS)}. There is no Erlang here that could run others.",
    ),
    Command(
        "await_startup", NODES, "[--timeout <timeout>]",
        "Waits for the Leveret application to start on the target node",
        "leveret server & leveretctl await_startup --timeout 30", await_startup, waits=True,
        more="Also waits for a node that has not been started yet. The default timeout is 300 seconds.",
    ),
    Command(
        "reset", NODES, "",
        "Instructs a node to leave the cluster and return to its virgin state",
        "leveretctl stop_app && leveretctl reset && leveretctl start_app", reset,
        more="The application must be stopped. All queues of the node are lost, with their messages.",
    ),
    Command(
        "shutdown", NODES, "", "Stops the node: the same as stop", "leveretctl shutdown", stop,
    ),
    Command(
        "start_app", NODES, "", "Starts the Leveret application but leaves the process running",
        "leveretctl start_app", start_app,
    ),
    Command(
        "stop", NODES, "", "Stops the node: its application, then its process",
        "leveretctl -n leveret@localhost stop", stop,
        more="Returns when the process has ended, if it belongs to this user and machine.",
    ),
    Command(
        "stop_app", NODES, "", "Stops the Leveret application, leaving the process running",
        "leveretctl stop_app", stop_app,
        more="Closes client connections. The cluster port stays open for reset, join_cluster and start_app.",
    ),
    Command(
        "await_online_nodes", CLUSTER, "<count> [--timeout <timeout>]", "Waits for <count> nodes to join the cluster",
        "leveretctl await_online_nodes 3 --timeout 60", await_online_nodes, 1, 1,
    ),
    Command(
        "cluster_status", CLUSTER, "[--timeout <timeout>]",
        "Displays all the nodes in the cluster, which of them are running, and the Raft leader",
        "leveretctl cluster_status --formatter json", cluster_status,
    ),
    Command(
        "force_boot", CLUSTER, "",
        "Forces node to start even if it cannot contact or rejoin any of its previously known peers",
        "leveretctl stop_app && leveretctl force_boot && leveretctl start_app", force_boot,
        more="For a cluster that has lost the majority of its nodes for good. The node continues alone, with what it "
        "knows; changes that only the others knew are lost. The others must be reset before they can join it. Never "
        "do this to two parts of one cluster.",
    ),
    Command(
        "force_reset", CLUSTER, "", "Forcefully returns a node to its virgin state, without telling its cluster",
        "leveretctl stop_app && leveretctl force_reset", force_reset,
        more="Afterwards remove it from its old cluster: leveretctl -n OTHER forget_cluster_node NODE",
    ),
    Command(
        "forget_cluster_node", CLUSTER, "<existing_cluster_member_node>",
        "Removes a stopped node from the cluster, with the queues that only it had",
        "leveretctl -n one@localhost forget_cluster_node two@localhost", forget_cluster_node, 1, 1,
        {"offline": None},
        more="--offline is refused: the change needs a majority of the nodes.",
    ),
    Command(
        "join_cluster", CLUSTER, "<existing_cluster_member>",
        "Instructs the node to become a member of the cluster that the specified node is in",
        "leveretctl -n two@localhost stop_app && leveretctl -n two@localhost join_cluster one@localhost && "
        "leveretctl -n two@localhost start_app",
        join_cluster, 1, 1, {"disc": None, "ram": None},
        more="<existing_cluster_member> is name@host, name@host:clusterport or host:clusterport. The application "
        "must be stopped; the data that the node had is deleted. Both nodes need the same cookie.",
    ),
    Command(
        "rename_cluster_node", CLUSTER, "<oldnode1> <newnode1> [<oldnode2> <newnode2>] ...",
        "Renames stopped nodes of the cluster",
        "leveretctl -n one@localhost rename_cluster_node two@localhost second@localhost", rename_cluster_node, 2, None,
        more="Run this at a node that is running. Then start the renamed one: leveret server --name NEWNAME --data "
        "ITS_OLD_FOLDER",
    ),
    Command(
        "check_local_alarms", MONITORING, "[--timeout <timeout>]",
        "Health check that exits with a non-zero code if the target node reports local alarms",
        "leveretctl check_local_alarms -q", check_local_alarms,
    ),
    Command(
        "check_running", MONITORING, "[--timeout <timeout>]",
        "Health check that exits with a non-zero code if the Leveret app on the target node is not running",
        "leveretctl check_running -q", check_running,
    ),
    Command(
        "ping", MONITORING, "[--timeout <timeout>]",
        "Checks that the node's process is up and CLI tools can authenticate with it", "leveretctl ping", ping,
    ),
    Command(
        "status", MONITORING, "[--timeout <timeout>]", "Displays status of a node", "leveretctl status", status,
    ),
    Command(
        "set_cluster_name", CONFIGURATION, "<name>", "Sets the cluster name",
        "leveretctl set_cluster_name production", set_cluster_name, 1, 1,
    ),
)  # fmt: skip
