"""Health checks: a sentence for people, an exit code for scripts, and JSON for programs.

RabbitMQ's words and exit codes: 0 if all is well, 69 if not.
"""

from __future__ import annotations

import datetime
import socket
from typing import TYPE_CHECKING, Any, Final

from leveret.base.control_protocol import PLAIN, VALIDATION
from leveret.base.exit_codes import DATA_ERROR, SOFTWARE, UNAVAILABLE, USAGE
from leveret.cli.ctl.base.command import VHOST, Command, Failed, Given, Message, Output, Report

if TYPE_CHECKING:
    from leveret.cli.ctl.base.session import Session

MONITORING: Final = "Monitoring, observability and health checks"
QUEUES: Final = "Queues"
UNITS: Final = {"days": 1, "weeks": 7, "months": 30, "years": 365}
CONNECT_S: Final = 3.0
AWAIT_QUORUM_S: Final = 120.0
FINE: Final = {"result": "ok"}
# What RabbitMQ's tools call a protocol: several words for one.
PROTOCOLS: Final = {
    "amqp091": "amqp", "amqp0.9.1": "amqp", "amqp 0-9-1": "amqp", "amqps": "amqp/ssl", "management": "http",
    "tls": "amqp/ssl", "http/ssl": "https",
}  # fmt: skip


# -- Alarms --------------------------------------------------------------------------------------------------------


def _alarms(session: Session) -> tuple[dict[str, Any], list[str]]:
    from leveret.cli.ctl.nodes.status_text import alarm_text

    found = session.ask("all_alarms")
    return found, [alarm_text(one) for one in (*found["local"], *found["global"])]


def alarms(session: Session, given: Given) -> Output:
    from leveret.cli.ctl.nodes.status_text import alarm_text

    session.banner(f"Asking node {session.name} to report any known resource alarms ...")
    found, lines = _alarms(session)
    if not lines:
        text = f"Node {session.name} reported no alarms, local or clusterwide"
        return Report({"result": "ok", "node": session.name, "alarms": []}, text)
    told: dict[str, Any] = {where: [alarm_text(one) for one in found[where]] for where in ("global", "local")}
    told |= {"message": f"Node {session.name} reported alarms", "result": "ok"}
    return Report(told, "\n".join(lines))


def check_alarms(session: Session, given: Given) -> Output:
    session.banner(f"Asking node {session.name} to report any local resource alarms ...")
    _, lines = _alarms(session)
    if lines:
        raise Failed(UNAVAILABLE, "\n".join(lines), PLAIN, {"result": "error", "alarms": lines})
    return Report(FINE, f"Node {session.name} reported no alarms, local or clusterwide")


# -- The application -----------------------------------------------------------------------------------------------


def is_running(session: Session, given: Given) -> Output:
    session.banner(f"Asking node {session.name} for its status ...")
    running = session.ask("app_state")["running"]
    state = "is fully booted and running" if running else "is not running or has not fully booted yet"
    text = f"Leveret on node {session.name} {state} (check with is_booting)"
    return _yes_or_no(running, text.removesuffix(" (check with is_booting)") if running else text)


def is_booting(session: Session, given: Given) -> Output:
    session.banner(f"Asking node {session.name} for its boot status ...")
    starting = session.ask("app_state")["starting"]
    state = (
        "is booting" if starting else "is fully booted (check with is_running), stopped or has not started booting yet"
    )
    return _yes_or_no(starting, f"Leveret on node {session.name} {state}")


def _yes_or_no(value: bool, text: str) -> Report:
    return Report({"result": value, "message": text}, text)


def check_virtual_hosts(session: Session, given: Given) -> Output:
    session.banner(f"Checking if all vhosts are running on node {session.name} ...")
    session.ask("list_vhosts", {"columns": ["name"]})  # Answered by a node that runs, and then they all do.
    return Report(FINE, f"Node {session.name} reported all vhosts as running")


def node_health_check(session: Session, given: Given) -> Output:
    session.banner("This command is DEPRECATED: use check_running, check_alarms and check_port_connectivity.")
    session.banner(f"Timeout: {session.timeout_s(70):g} seconds ...")
    session.banner(f"Checking health of node {session.name} ...")
    if not session.ask("app_state")["running"]:
        raise Failed(SOFTWARE, f"Health check failed: Leveret on node {session.name} is not running")
    _, lines = _alarms(session)
    if lines:
        raise Failed(SOFTWARE, f"Health check failed: {'; '.join(lines)}")
    return Message("Health check passed")


def restart_vhost(session: Session, given: Given) -> Output:
    session.banner(f"Trying to restart vhost '{given.vhost}' on node '{session.name}' ...")
    session.ask("app_state")
    names = [row[0] for row in session.rows("list_vhosts", ("name",)).rows]
    if given.vhost not in names:
        text = f"Failed to start vhost '{given.vhost}' on node '{session.name}': there is no such vhost"
        raise Failed(SOFTWARE, text)
    return Message(f"Vhost '{given.vhost}' is already running on node '{session.name}'")


# -- Listeners -----------------------------------------------------------------------------------------------------


def _listeners(session: Session) -> list[dict[str, Any]]:
    return list(session.ask("listening")["listeners"])


def listeners(session: Session, given: Given) -> Output:
    from leveret.cli.ctl.nodes.status_text import listener_text

    session.banner(f"Asking node {session.name} to report its protocol listeners ...")
    found = _listeners(session)
    told = {"result": "ok", "node": session.name, "listeners": found}
    return Report(told, "\n".join(listener_text(one, "Interface") for one in found))


def check_port_listener(session: Session, given: Given) -> Output:
    port = given.words[0]
    if not port.isdecimal() or int(port) < 1:
        raise Failed(DATA_ERROR, "Bad argument: Argument must be a positive integer", VALIDATION)
    session.banner(f"Asking node {session.name} if there's an active listener on port {port} ...")
    found = _listeners(session)
    ports = [one["port"] for one in found]
    if int(port) in ports:
        return Report(
            {"result": "ok", "port": int(port)}, f"A listener for port {port} is running on node {session.name}."
        )
    shown = ", ".join(map(str, sorted(ports)))
    text = f"No listener for port {port} is active on node {session.name}. "
    text += f"Found listeners that use the following ports: {shown}"
    raise Failed(UNAVAILABLE, text, PLAIN, {"result": "error", "missing": port, "ports": ports, "listeners": found})


def check_protocol_listener(session: Session, given: Given) -> Output:
    name = given.words[0]
    session.banner(f"Asking node {session.name} if there's an active listener for protocol {name} ...")
    found = _listeners(session)
    protocols = list(dict.fromkeys(one["protocol"] for one in found))
    if PROTOCOLS.get(name.lower(), name.lower()) in protocols:
        text = f"A listener for protocol {name} is running on node {session.name}."
        return Report({"result": "ok", "protocol": name}, text)
    text = f"No listener for protocol {name} is active on node {session.name}. "
    text += f"Found listeners for the following protocols: {', '.join(sorted(protocols))}"
    value = {"result": "error", "missing": name, "protocols": protocols, "listeners": found}
    raise Failed(UNAVAILABLE, text, value=value)


def check_port_connectivity(session: Session, given: Given) -> Output:
    session.banner(f"Testing TCP connections to all active listeners on node {session.name} ...")
    found = _listeners(session)
    failed = [one for one in found if not _accepts(session, one)]
    ports = ", ".join(str(one["port"]) for one in sorted(failed or found, key=lambda one: int(one["port"])))
    if failed:
        text = f"Connection attempts failed to the following ports on node {session.name}: {ports}"
        raise Failed(UNAVAILABLE, text, value={"result": "error", "failures": failed})
    told = {"result": "ok", "node": session.name, "listeners": found}
    return Report(told, f"Successfully connected to ports {ports} on node {session.name}.")


def _accepts(session: Session, listener: dict[str, Any]) -> bool:
    everywhere = listener["interface"] in ("[::]", "::", "0.0.0.0", "")
    host = session.target.host if everywhere else listener["interface"].strip("[]")
    try:
        socket.create_connection((host, listener["port"]), given_or(session, CONNECT_S)).close()
    except OSError:
        return False
    return True


def given_or(session: Session, default_s: float) -> float:
    return min(default_s, session.timeout_s(default_s)) or default_s


# -- Certificates --------------------------------------------------------------------------------------------------


def certificates(session: Session, given: Given) -> Output:
    session.banner(f"Certificates of node {session.name} ...")
    found = session.ask("tls")["certificates"]
    lines = [f"{one['name']}: {one['file']}, {_validity(one)}" for one in found]
    return Report(
        found, "\n".join(lines) or "No certificates are in use: neither listeners.ssl nor cluster.ssl_options"
    )


def _validity(one: dict[str, Any]) -> str:
    return f"cannot be read: {one['error']}" if one["not_after"] is None else f"valid until {one['not_after']}"


def check_certificate_expiration(session: Session, given: Given) -> Output:
    unit, count = given.text("unit", "weeks"), int(given.text("within", "4"))
    if unit not in UNITS:
        known = ", ".join(UNITS)
        raise Failed(USAGE, f"unit '{unit}' is not supported. Please use one of: {known}", VALIDATION)
    session.banner(f"Checking certificate expiration on node {session.name} ...")
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=UNITS[unit] * count)
    found = session.ask("tls")["certificates"]
    ending = [one for one in found if one["error"] or datetime.datetime.fromisoformat(one["not_after"]) < until]
    if not ending:
        return Report(FINE, f"No certificates are expiring within {count} {unit}.")
    lines = "\n".join(f"{one['name']}: {one['file']}, {_validity(one)}" for one in ending)
    text = f"The following certificates are expiring within {count} {unit}, or cannot be read:\n{lines}"
    raise Failed(UNAVAILABLE, text, value={"result": "error", "certificates": ending})


# -- Majorities ----------------------------------------------------------------------------------------------------


def _quorum_lines(answer: dict[str, Any], node: str) -> list[str]:
    lines = [
        f"queue '{one['name']}' in vhost '{one['vhost']}' would lose quorum if node {node} is stopped"
        for one in answer["queues"]
    ]
    if answer["left"] < answer["majority"]:
        others = f"{answer['left']} of {answer['voters']} nodes would run, and changes need {answer['majority']}"
        lines.append(f"the cluster would lose its majority if node {node} is stopped: {others}")
    return lines


def check_if_node_is_quorum_critical(session: Session, given: Given) -> Output:
    session.banner(f"Checking if node {session.name} is critical for quorum of any quorum queues ...")
    answer = session.ask("quorum_critical")
    if answer["single"]:
        text = "seems to be the only one in a single node cluster, the check does not apply"
        return Report(FINE, f"Node {session.name} {text}")
    lines = _quorum_lines(answer, session.name)
    if lines:
        raise Failed(UNAVAILABLE, "\n".join(lines), PLAIN, {"result": "error", "queues": answer["queues"]})
    return Report(FINE, f"Node {session.name} reported no quorum queues with minimum quorum")


def await_online_quorum_plus_one(session: Session, given: Given) -> Output:
    session.banner(
        "Will wait for a quorum + 1 of nodes to be online for all quorum queues for "
        f"{round(session.timeout_s(AWAIT_QUORUM_S))} seconds..."
    )
    while True:
        answer = session.ask("quorum_critical", patience_s=AWAIT_QUORUM_S)
        if answer["single"]:
            text = "Target node seems to be the only one in a single node cluster, the command does not apply"
            return None if given.flag("quiet") or given.flag("silent") else Message(text)
        if not _quorum_lines(answer, session.name):
            return None
        if session.left_s(AWAIT_QUORUM_S) < 0.2:
            text = "time is up, no quorum + 1 online replicas came online for at least some quorum queues"
            raise Failed(UNAVAILABLE, text)
        session.pause(AWAIT_QUORUM_S)


TIMEOUT: Final = "[--timeout <timeout>]"
HEALTH: Final = "Health check that exits with a non-zero code if"

COMMANDS: Final = (
    Command(
        "alarms", MONITORING, TIMEOUT, "Lists resource alarms (local or cluster-wide) in the target node",
        "leveretctl alarms --formatter json", alarms,
    ),
    Command(
        "check_alarms", MONITORING, TIMEOUT, f"{HEALTH} there are alarms, local or on other nodes",
        "leveretctl check_alarms -q", check_alarms,
    ),
    Command(
        "check_certificate_expiration", MONITORING, "[--within <period>] [--unit <unit>]",
        f"{HEALTH} a certificate of the node expires soon",
        "leveretctl check_certificate_expiration --within 2 --unit months", check_certificate_expiration,
        switches={"within": "period", "unit": "unit"}, more=f"Units: {', '.join(UNITS)}. Default: 4 weeks.",
    ),
    Command(
        "check_if_node_is_quorum_critical", QUEUES, TIMEOUT,
        f"{HEALTH} quorum queues or the cluster itself would be unavailable without the target node",
        "leveretctl -n one@localhost check_if_node_is_quorum_critical", check_if_node_is_quorum_critical,
    ),
    Command(
        "check_port_connectivity", MONITORING, TIMEOUT, f"{HEALTH} a TCP connection to a listener of the node fails",
        "leveretctl check_port_connectivity", check_port_connectivity,
        more="The connections are made from the machine on which this command runs.",
    ),
    Command(
        "check_port_listener", MONITORING, f"<port> {TIMEOUT}",
        f"{HEALTH} the target node does not listen at that port",
        "leveretctl check_port_listener 5672", check_port_listener, 1, 1,
    ),
    Command(
        "check_protocol_listener", MONITORING, f"<protocol> {TIMEOUT}",
        f"{HEALTH} the target node has no listener for that protocol", "leveretctl check_protocol_listener amqp",
        check_protocol_listener, 1, 1, more="For example amqp, amqp/ssl, http, clustering; see: leveretctl listeners",
    ),
    Command(
        "check_virtual_hosts", MONITORING, TIMEOUT, f"{HEALTH} some virtual hosts are not running on the target node",
        "leveretctl check_virtual_hosts", check_virtual_hosts,
    ),
    Command(
        "is_booting", MONITORING, TIMEOUT, "Checks if Leveret is still booting on the target node",
        "leveretctl is_booting", is_booting,
    ),
    Command(
        "is_running", MONITORING, TIMEOUT, "Checks if Leveret is fully booted and running on the target node",
        "leveretctl is_running --formatter json", is_running,
        more="The exit code is 0 in both cases; for a health check see: leveretctl help check_running",
    ),
    Command(
        "listeners", MONITORING, TIMEOUT, "Lists active listeners of the node and their protocols",
        "leveretctl listeners", listeners,
    ),
    Command(
        "certificates", MONITORING, TIMEOUT, "Displays certificates of the node, and when they expire",
        "leveretctl certificates", certificates,
    ),
    Command(
        "node_health_check", MONITORING, TIMEOUT, "DEPRECATED. Checks that the node is running and has no alarms",
        "leveretctl node_health_check", node_health_check,
    ),
    Command(
        "restart_vhost", "Virtual hosts", "[--vhost <vhost>]", "Checks that a virtual host is running",
        "leveretctl restart_vhost -p shop", restart_vhost, switches=VHOST,
        more="In RabbitMQ a single virtual host can fail on a node. Here it cannot: a virtual host runs wherever its "
        "node does.",
    ),
    Command(
        "await_online_quorum_plus_one", QUEUES, TIMEOUT,
        "Waits until all quorum queues, and the cluster itself, can do without the target node",
        "leveretctl -n one@localhost await_online_quorum_plus_one && leveretctl -n one@localhost stop",
        await_online_quorum_plus_one, more="The default timeout is 120 seconds.",
    ),
)  # fmt: skip
