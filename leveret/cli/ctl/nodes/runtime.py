"""Commands that show and change how a node runs: its log, its limits, its listeners, where it is."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Final

from leveret.base.control_protocol import VALIDATION
from leveret.base.exit_codes import DATA_ERROR, UNAVAILABLE, USAGE
from leveret.cli.ctl.base.command import VHOST, Command, Failed, Given, Message, Output, Report, Rows

if TYPE_CHECKING:
    from leveret.cli.ctl.base.session import Session

MONITORING: Final = "Monitoring, observability and health checks"
CONFIGURATION: Final = "Configuration and Environment"
OPERATIONS: Final = "Operations"
QUEUES: Final = "Queues"
NODES: Final = "Nodes"
FLAG_COLUMNS: Final = ("name", "state", "stability", "provided_by", "desc", "doc_url")
BAD_ARGUMENT: Final = "Bad argument."
WAIT_S: Final = 10.0
FAMILIES: Final = {"ipv4": "IPv4", "ipv6": "IPv6"}


# -- The log -------------------------------------------------------------------------------------------------------


def set_log_level(session: Session, given: Given) -> Output:
    level, category = given.words[0], given.switches.get("category")
    of = "" if category is None else f' of category "{category}"'
    session.banner(f'Setting log level{of} to "{level}" ...')
    answer = session.ask("set_log_level", {"level": level, "category": category})
    if not answer["shown"]:
        session.warn(
            f"Warning: no output of this node lets through what is {level}; see log.console.level and log.file.level "
            "in its configuration"
        )
    return None


def rotate_logs(session: Session, given: Given) -> Output:
    session.banner(f"Reopening the log files of node {session.name} ...")
    session.ask("rotate_logs")
    return None


def log_location(session: Session, given: Given) -> Output:
    session.banner(f"Log file location(s) on node {session.name} ...")
    paths = session.ask("log_location")["paths"]
    if not given.flag("all"):
        paths = paths[:1]
    return Report({"result": "ok", "node_name": session.name, "paths": paths}, "\n".join(paths))


def log_tail(session: Session, given: Given) -> Output:
    count = int(given.text("number", "50"))
    session.banner(f"Last {count} log lines on node {session.name} ...")
    lines = session.ask("log_tail", {"lines": count})["lines"]
    return Report({"result": "ok", "lines": lines}, "\n".join(lines))


def log_tail_stream(session: Session, given: Given) -> Output:
    """Until somebody has seen enough."""
    duration_s = float(given.text("duration", "inf"))
    end_s = time.monotonic() + duration_s
    session.banner(f"Streaming logs from node {session.name} ...", now=True)
    session.begin()
    at = session.ask("log_tail", {"lines": 1})["end"]
    while time.monotonic() < end_s:
        session.begin()  # Each question has the time that -t gives.
        answer = session.ask("log_tail", {"lines": 1, "after": at})
        at = answer["end"]
        for line in answer["lines"]:
            print(line, flush=True)
        if not answer["lines"]:
            time.sleep(0.2)
    return None


# -- Limits --------------------------------------------------------------------------------------------------------


def _bytes(text: str) -> int | None:
    from leveret.node.config.schema import LIMIT_UNITS, NotAllowed, size

    try:
        return size(0, 1 << 59, LIMIT_UNITS)(text)
    except NotAllowed:
        return None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value == value and abs(value) < 1e18 else None


def set_vm_memory_high_watermark(session: Session, given: Given) -> Output:
    limit: dict[str, float | int]
    if given.words[0] == "absolute":
        count = _bytes(given.words[1]) if len(given.words) == 2 else None
        if count is None:
            raise Failed(DATA_ERROR, BAD_ARGUMENT, VALIDATION)
        limit, shown = {"bytes": count}, f"{given.words[1]} bytes"
    else:
        part = _number(given.words[0])
        if part is None or len(given.words) > 1:
            raise Failed(DATA_ERROR, BAD_ARGUMENT, VALIDATION)
        if not 0 <= part <= 1:
            text = "Bad argument: The threshold should be a fraction between 0.0 and 1.0"
            raise Failed(DATA_ERROR, text, VALIDATION)
        limit, shown = {"times": part}, str(part)
    session.banner(f"Setting memory threshold on {session.name} to {shown} ...")
    session.ask("set_memory_limit", {"limit": limit})
    return None


def set_disk_free_limit(session: Session, given: Given) -> Output:
    limit: dict[str, float | int]
    if given.words[0] == "mem_relative":
        times = _number(given.words[1]) if len(given.words) == 2 else None
        if times is None or not 0 <= times <= 1000:
            raise Failed(DATA_ERROR, BAD_ARGUMENT, VALIDATION)
        limit, shown = {"times": times}, f"{times} times the total RAM"
    else:
        count = _bytes(given.words[0])
        if count is None or len(given.words) > 1:
            raise Failed(DATA_ERROR, BAD_ARGUMENT, VALIDATION)
        limit, shown = {"bytes": count}, f"{given.words[0]} bytes"
    session.banner(f"Setting disk free limit on {session.name} to {shown} ...")
    session.ask("set_disk_limit", {"limit": limit})
    return None


# -- Listeners ---------------------------------------------------------------------------------------------------------


def suspend_listeners(session: Session, given: Given) -> Output:
    session.banner(
        f"Will suspend client connection listeners on node {session.name}. "
        "The node will no longer accept client connections!"
    )
    session.ask("suspend_listeners")
    return None


def resume_listeners(session: Session, given: Given) -> Output:
    session.banner(
        f"Will resume client connection listeners on node {session.name}. The node will now accept client connections"
    )
    session.ask("resume_listeners")
    return None


LIMITS: Final = ("memory_limit_bytes", "disk_limit_bytes")  # In bytes, as they follow from the settings.
REMARKS_AT: Final = 56


# -- Where and what it is ------------------------------------------------------------------------------------------


def server_version(session: Session, given: Given) -> Output:
    session.banner(f"Asking node {session.name} for its Leveret version...")
    version = session.ask("ping")["version"]
    return Report({"result": "ok", "value": version}, version)


def environment(session: Session, given: Given) -> Output:
    from leveret.node.config.config_as_text import line

    session.banner(f"Application environment of node {session.name} ...")
    found = session.ask("environment")
    usual = found["defaults"]
    lines = [
        f"{line(key, text):<{REMARKS_AT}}  # default: {usual[key]}" if key in usual else line(key, text)
        for key, text in found["config"].items()
    ]
    lines += (f"# {name} = {found['leveret'][name]}" for name in LIMITS if name in found["leveret"])
    return Report(found, "\n".join(lines))


def os_env(session: Session, given: Given) -> Output:
    session.banner(f"Listing the environment variables that affect node {session.name} ...")
    found = session.ask("os_env")
    return Report(found, "\n".join(f"{name}={value}" for name, value in found.items()))


def command_line_arguments(session: Session, given: Given) -> Output:
    session.banner(f"Command line arguments of node {session.name} ...")
    found = session.ask("command_line")["arguments"]
    return Report(found, " ".join(found))


def erlang_cookie_hash(session: Session, given: Given) -> Output:
    session.banner(f"Asking node {session.name} its cookie hash...")
    found = session.ask("cookie_hash")["hash"]
    return Report({"result": "ok", "value": found}, found)


def erlang_cookie_sources(session: Session, given: Given) -> Output:
    """Say which file the cookie was read from; a node with another cookie could not have been reached."""
    session.banner("Listing where this tool found its cookie...")
    session.ask("ping")
    return Report({"used": session.target.cookie_from}, session.target.cookie_from)


def discover_peers(session: Session, given: Given) -> Output:
    session.banner("Discovering peers nodes ...")
    found = session.ask("discover_peers")["peers"]
    return Report(found, "\n".join(found) or "No peers discovered")


def resolve_hostname(session: Session, given: Given) -> Output:
    name, family = given.words[0], given.text("address-family", "ipv4").lower()
    if family not in FAMILIES:
        text = f"Bad argument: unsupported IP address family {family}. Valid values are: ipv4, ipv6"
        raise Failed(DATA_ERROR, text, VALIDATION)
    session.banner(f"Asking node {session.name} to resolve hostname {name} to {FAMILIES[family]} addresses...")
    found = session.ask("resolve_hostname", {"name": name, "family": family})["addresses"]
    told = {"result": "ok", "node": session.name, "hostname": name, "address_family": FAMILIES[family]}
    return Report({**told, "addresses": found}, "\n".join(found))


def tls_versions(session: Session, given: Given) -> Output:
    session.banner("Listing all TLS versions supported by the runtime...")
    found = session.ask("tls")["versions"]
    return Report({"versions": found}, "\n".join(found))


def cipher_suites(session: Session, given: Given) -> Output:
    form = given.text("format", "openssl").lower()
    if form != "openssl":
        raise Failed(USAGE, f"format {form} is not supported; use: openssl", VALIDATION)
    session.banner("Listing available cipher suites in OpenSSL format")
    found = session.ask("tls")["ciphers"]
    return Report({"result": "ok", "cipher_suites": found}, "\n".join(found))


def memory_breakdown(session: Session, given: Given) -> Output:
    from leveret.cli.ctl.nodes.status_text import UNITS, memory_lines

    unit = given.text("unit", "gb").lower()
    if unit not in UNITS:
        known = ", ".join(UNITS)
        raise Failed(
            DATA_ERROR, f"Bad argument: unit '{unit}' is not supported. Please use one of: {known}", VALIDATION
        )
    session.banner(f"Reporting memory breakdown on node {session.name}...")
    answer = session.ask("memory_breakdown")
    parts, total = answer["parts"], answer["total"]
    told = {
        name: {"bytes": count, "percentage": round(100 * count / max(total, 1), 2)} for name, count in parts.items()
    }
    return Report(told, "\n".join(memory_lines(parts, total, unit, "")))


# -- Feature flags -------------------------------------------------------------------------------------------------


def list_feature_flags(session: Session, given: Given) -> Output:
    session.banner("Listing feature flags ...")
    columns = tuple(given.words) or ("name", "state")
    return Rows(columns, [[row[name] for name in columns] for row in session.ask("feature_flags")])


def enable_feature_flag(session: Session, given: Given) -> Output:
    name = given.words[0]
    session.banner("Enabling all feature flags ..." if name == "all" else f'Enabling feature flag "{name}" ...')
    known = [row["name"] for row in session.ask("feature_flags")]
    if name not in ("all", *known):
        raise Failed(USAGE, f"This feature flag is not supported by node {session.name}")
    return None


# -- Queues --------------------------------------------------------------------------------------------------------


def peek(session: Session, given: Given) -> Output:
    name, position = given.words
    if not position.isdecimal() or int(position) < 1:
        raise Failed(DATA_ERROR, "Bad argument: position value must be greater than zero", VALIDATION)
    session.banner(f"Peeking at queue {name} at position {position} on node {session.name} ...")
    found = session.ask("peek", {"vhost": given.vhost, "name": name, "position": int(position)})
    if given.switches.get("formatter") in ("json", "json_stream"):
        return Report({"result": "ok", "message": found}, "")
    return Rows(("keys", "values"), [[key, _joined(value)] for key, value in found.items()])


def _joined(value: Any) -> Any:
    return ", ".join(value) if isinstance(value, list) and all(isinstance(one, str) for one in value) else value


def quorum_status(session: Session, given: Given) -> Output:
    session.banner(f"Status of quorum queue {given.words[0]} on node {session.name} ...")
    rows = session.ask("quorum_status", {"vhost": given.vhost, "name": given.words[0]})
    return Rows(tuple(rows[0]), [list(row.values()) for row in rows])


def stream_status(session: Session, given: Given) -> Output:
    session.banner(f"Status of stream {given.words[0]} on node {session.name} ...")
    rows = session.ask("stream_status", {"vhost": given.vhost, "name": given.words[0]})
    return Rows(tuple(rows[0]), [list(row.values()) for row in rows])


def list_unresponsive_queues(session: Session, given: Given) -> Output:
    from leveret.node.admin.common import listing_columns

    session.banner(f"Listing unresponsive queues for vhost {given.vhost} ...")
    columns = tuple(given.words) or ("name",)
    unknown = sorted(set(columns).difference(listing_columns.QUEUES))
    if unknown:
        raise Failed(USAGE, f"Info key(s) {','.join(unknown)} are not supported", VALIDATION)
    found = session.rows("list_queues", (*columns, "state"), {"vhost": given.vhost})
    return Rows(columns, (row[:-1] for row in found.rows if row[-1] in ("down", "minority")))


def add_member(session: Session, given: Given) -> Output:
    queue, node = given.words
    session.banner(f"Adding a replica for queue {queue} on node {node}...")
    session.ask("add_queue_mirror_link", {"vhost": given.vhost, "source": queue, "node": node})
    return None


def delete_member(session: Session, given: Given) -> Output:
    queue, node = given.words
    session.banner(f"Removing a replica of queue {queue} on node {node}...")
    session.ask("remove_queue_mirror_link", {"vhost": given.vhost, "source": queue, "node": node})
    return None


def set_permissions_globally(session: Session, given: Given) -> Output:
    user, configure, write, read = given.words
    session.banner(f'Setting permissions for user "{user}" in all virtual hosts ...')
    for (vhost,) in session.rows("list_vhosts", ("name",)).rows:
        patterns = {"configure": configure, "write": write, "read": read}
        session.ask("set_permissions", {"user": user, "vhost": vhost, **patterns})
    return None


# -- Waiting for a process -----------------------------------------------------------------------------------------


def wait(session: Session, given: Given) -> Output:
    """The node answers by now; what is left is the process, and the application in it."""
    pid = str(given.switches.get("pid", "")) or _pid_of(session, given)
    session.banner(f"Waiting for node '{session.name}' while OS process '{pid}' is running", now=True)
    while not session.ask("app_state", patience_s=WAIT_S)["running"]:
        if not _lives(int(pid)):
            raise Failed(UNAVAILABLE, f"process {pid} is not running")
        session.pause(WAIT_S)
    return Message(f"Leveret is running on node '{session.name}'")


def _pid_of(session: Session, given: Given) -> str:
    if not given.words:
        raise Failed(USAGE, "give the path of a file with the process id, or --pid", VALIDATION)
    path = given.words[0]
    session.banner(f"Waiting for pid file '{path}' to appear", now=True)
    while True:
        try:
            with open(path, encoding="ascii", errors="replace") as file:
                pid = file.read(64).strip()
            if pid.isdecimal():
                return pid
        except FileNotFoundError:
            pass
        except OSError as error:
            raise Failed(DATA_ERROR, f"cannot read {path}: {error.strerror or error}") from None
        session.pause(WAIT_S)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # Of another user.
    return True


TIMEOUT: Final = "[--timeout <timeout>]"
CATEGORIES: Final = "default, connection, channel, queue, mirroring, cluster, peers"

COMMANDS: Final = (
    Command(
        "log_location", MONITORING, "[--all]", "Shows log file location(s) on target node",
        "leveretctl log_location --all", log_location, switches={"all": None},
    ),
    Command(
        "log_tail", MONITORING, "[--number|-N <number>]", "Prints the last N lines of the log on the node",
        "leveretctl log_tail -N 200", log_tail, switches={"number": "number"},
        more="50 lines by default. The node must have a log file (log.file, or log.dir).",
    ),
    Command(
        "log_tail_stream", MONITORING, "[--duration|-d <seconds>]", "Streams logs from a running node until Ctrl-C",
        "leveretctl log_tail_stream | grep -i mirror", log_tail_stream, switches={"duration": "seconds"},
    ),
    Command(
        "rotate_logs", NODES, "", "Makes a node reopen its log files, after a tool has moved them away",
        "mv node.log node.log.1 && leveretctl rotate_logs", rotate_logs,
        more="A signal does the same: kill -HUP <pid>. To let the node itself rotate, see log.file.rotation.size.",
    ),
    Command(
        "set_log_level", OPERATIONS, "<log_level> [--category <category>]", "Sets log level in the running node",
        "leveretctl set_log_level debug --category mirroring", set_log_level, 1, 1, {"category": "category"},
        more="Levels: debug, info, notice, warning, error, critical, none. Categories: "
        f"{CATEGORIES}; without one, all of them. This lasts until the node stops; for a permanent change set "
        "log.<category>.level in the configuration file.",
    ),
    Command(
        "set_disk_free_limit", OPERATIONS, "<disk_limit> | mem_relative <fraction>",
        "Sets the disk_free_limit setting", "leveretctl set_disk_free_limit 2GB", set_disk_free_limit, 1, 2,
        more="Publishers are blocked while less is free. This lasts until the node stops.",
    ),
    Command(
        "set_vm_memory_high_watermark", OPERATIONS, "<fraction> | absolute <value>",
        "Sets the vm_memory_high_watermark setting", "leveretctl set_vm_memory_high_watermark absolute 4GB",
        set_vm_memory_high_watermark, 1, 2,
        more="Publishers are blocked while the node uses more. This lasts until the node stops.",
    ),
    Command(
        "suspend_listeners", OPERATIONS, TIMEOUT,
        "Suspends client connection listeners so that no new client connections are accepted",
        "leveretctl suspend_listeners", suspend_listeners, more="Connected clients stay connected.",
    ),
    Command(
        "resume_listeners", OPERATIONS, TIMEOUT,
        "Resumes client connection listeners making them accept client connections again",
        "leveretctl resume_listeners", resume_listeners,
    ),
    Command(
        "server_version", MONITORING, TIMEOUT, "Displays server version on the target node",
        "leveretctl -q server_version", server_version,
    ),
    Command(
        "environment", CONFIGURATION, TIMEOUT, "Displays the settings in force on the target node",
        "leveretctl environment --formatter json", environment,
        more="This includes changes since the start. Passwords and cookies are not shown.",
    ),
    Command(
        "os_env", CONFIGURATION, TIMEOUT, "Lists environment variables that affect the target node",
        "leveretctl os_env", os_env,
    ),
    Command(
        "command_line_arguments", CONFIGURATION, TIMEOUT, "Displays target node's command-line arguments",
        "leveretctl command_line_arguments", command_line_arguments,
    ),
    Command(
        "erlang_cookie_hash", CONFIGURATION, TIMEOUT, "Displays a hash of the cookie on the target node",
        "leveretctl erlang_cookie_hash", erlang_cookie_hash, more="All nodes of a cluster have the same one.",
    ),
    Command(
        "erlang_cookie_sources", CONFIGURATION, TIMEOUT, "Shows where this tool gets the cookie from",
        "leveretctl erlang_cookie_sources", erlang_cookie_sources,
        more="It uses the first one that is given: --cookie-file, LEVERET_COOKIE_FILE, LEVERET_COOKIE, "
        "RABBITMQ_ERLANG_COOKIE, the data folder of the node.",
    ),
    Command(
        "discover_peers", MONITORING, TIMEOUT, "Performs peer discovery and lists discovered nodes, if any",
        "leveretctl discover_peers", discover_peers,
    ),
    Command(
        "resolve_hostname", CONFIGURATION, "<hostname> [--address-family <ipv4 | ipv6>]",
        "Resolves a hostname to a set of addresses, on the target node",
        "leveretctl resolve_hostname two.example.org --address-family ipv6", resolve_hostname, 1, 1,
        {"address-family": "ipv4 | ipv6"},
    ),
    Command(
        "tls_versions", MONITORING, TIMEOUT, "Lists TLS versions that the node supports",
        "leveretctl tls_versions", tls_versions,
    ),
    Command(
        "cipher_suites", MONITORING, "[--format openssl]", "Lists cipher suites enabled by default",
        "leveretctl cipher_suites", cipher_suites, switches={"format": "format"},
    ),
    Command(
        "memory_breakdown", MONITORING, "[--unit <unit>]", "Provides a memory usage breakdown on the target node",
        "leveretctl memory_breakdown --unit MB", memory_breakdown, switches={"unit": "unit"},
        more="Units: gb, mb, kb, bytes.",
    ),
    Command(
        "list_feature_flags", "Feature flags", "[<column> ...]", "Lists feature flags", "leveretctl list_feature_flags",
        list_feature_flags, 0, None, columns=FLAG_COLUMNS,
        more="Lists the flags of RabbitMQ 3.10, for tools that look for them. All are always enabled.",
    ),
    Command(
        "enable_feature_flag", "Feature flags", "<all | feature_flag>",
        "Enables a feature flag or all supported feature flags", "leveretctl enable_feature_flag all",
        enable_feature_flag, 1, 1,
    ),
    Command(
        "peek", QUEUES, "[--vhost <vhost>] <queue> <position>",
        "Peeks at the given position of a queue; the message stays where it is", "leveretctl peek orders 1", peek, 2, 2,
        VHOST, more="The first message is at position 1. Shows the first 64 bytes of the payload.",
    ),
    Command(
        "quorum_status", QUEUES, "[--vhost <vhost>] <queue>", "Displays the members of a quorum queue",
        "leveretctl quorum_status orders", quorum_status, 1, 1, VHOST,
        more="A member that is shown as promotable does not have all messages yet. For details: leveretctl "
        "mirror_status",
    ),
    Command(
        "stream_status", QUEUES, "[--vhost <vhost>] <stream>", "Displays the copies of a stream",
        "leveretctl stream_status events", stream_status, 1, 1, VHOST,
    ),
    Command(
        "add_member", QUEUES, "[--vhost <vhost>] <queue> <node>", "Adds a quorum queue member (replica) on a node",
        "leveretctl add_member orders two@localhost", add_member, 2, 2, VHOST,
        more="The same as add_queue_mirror_link.",
    ),
    Command(
        "delete_member", QUEUES, "[--vhost <vhost>] <queue> <node>",
        "Removes a member (replica) that add_member added", "leveretctl delete_member orders two@localhost",
        delete_member, 2, 2, VHOST, more="The same as remove_queue_mirror_link.",
    ),
    Command(
        "list_unresponsive_queues", QUEUES, "[--vhost <vhost>] [--no-table-headers] [<column> ...]",
        "Lists queues whose master does not answer", "leveretctl list_unresponsive_queues name node",
        list_unresponsive_queues, 0, None, VHOST,
    ),
    Command(
        "set_permissions_globally", "Access Control", "<username> <conf> <write> <read>",
        "Sets user permissions in all existing virtual hosts",
        "leveretctl set_permissions_globally ann '.*' '.*' '.*'", set_permissions_globally, 4, 4,
    ),
    Command(
        "wait", NODES, "[<pidfile>] [--pid <pid>] [--timeout <timeout>]",
        "Waits for a node to start, as long as its process is running",
        "leveretctl wait /run/leveret/leveret.pid --timeout 60", wait, 0, 1, {"pid": "pid"}, waits=True,
        more="See also await_startup, which needs no pid file.",
    ),
)  # fmt: skip
