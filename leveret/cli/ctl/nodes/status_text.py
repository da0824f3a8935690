"""`cluster_status` and `status` for people, in rabbitmqctl's sections."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from leveret.cli.ctl.nodes.partitions import detached_lines, handling_text, local_lines, lost_text, waiting_lines

Style = Callable[[str], str]
NONE = "(none)"
UNITS = {"bytes": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}


def _sections(parts: Iterable[tuple[str, Iterable[str]]], bold: Style) -> str:
    return "\n\n".join("\n".join([bold(title), "", *(list(lines) or [NONE])]) for title, lines in parts)


def cluster_status(status: dict[str, Any], bold: Style) -> str:
    leader = status["leader"] or "none known"
    majority = "in contact" if status["has_majority"] else "NOT in contact: nothing can be declared or changed"
    learners = [one["name"] for one in status["members"] if not one["voter"]]
    running = set(status["running_nodes"])
    basics = [f"Cluster name: {status['cluster_name']}", f"Leader: {leader}", f"Majority: {majority}"]
    ways = list(dict.fromkeys(map(handling_text, status["partition_handling"].values())))
    basics.append(f"Partition handling: {', '.join(ways)}{' (the nodes differ)' if len(ways) > 1 else ''}")
    if present := [name for name in learners if name in running]:
        basics.append(f"Catching up: {', '.join(present)}")
    if absent := [name for name in learners if name not in running]:
        basics.append(f"No vote until it is back: {', '.join(absent)}")
    for one in status.get("witnesses", ()):
        counts = "" if one["voter"] else ", has no vote yet"
        basics.append(f"Witness: {one['name']} at {one['address']}, {'up' if one['running'] else 'DOWN'}{counts}")
    versions = status["versions"].items()
    listeners = [one for found in status["listeners"].values() for one in found]
    return _sections(
        [
            ("Basics", basics),
            ("Disk Nodes", status["disk_nodes"]),
            ("Running Nodes", status["running_nodes"]),
            (
                "Versions",
                [f"{name}: {one['rabbitmq_name']} {one['rabbitmq_version']} on {one['erlang_version']}"
                 for name, one in versions],
            ),
            (
                "Maintenance status",
                [f"Node: {name}, status: {state}" for name, state in status["maintenance_status"].items()],
            ),
            ("Alarms", map(alarm_text, status["alarms"])),
            ("Network Partitions", _partitions(status)),
            ("Listeners", [f"Node: {one['node']}, {listener_text(one, 'interface')}" for one in listeners]),
            ("Feature flags", [f"Flag: {one['name']}, state: {one['state']}" for one in status["feature_flags"]]),
        ],
        bold,
    )  # fmt: skip


def _partitions(status: dict[str, Any]) -> list[str]:
    """RabbitMQ's line for each node that is cut off from others; then who misses whom since when, and who is paused."""
    parted = status["partitions"].items()
    lines = [f"Node {name} cannot communicate with {', '.join(others)}" for name, others in parted]
    for name, lost in status["unreachable"].items():
        lines += [f"Node {name} is out of contact with {lost_text(one)}" for one in lost]
    for name, waiting in status.get("waiting_for", {}).items():
        lines += [f"Node {name}: {line}" for line in waiting_lines(waiting)]
    for name, served in status.get("detached", {}).items():
        lines += [f"Node {name}: {line}" for line in detached_lines(served)]
    return lines + [f"Node {name} is paused and serves no clients" for name in status["paused_nodes"]]


def alarm_text(alarm: dict[str, str]) -> str:
    what = {"memory": "Memory alarm on node {}", "disk": "Free disk space alarm on node {}"}[alarm["resource"]]
    return what.format(alarm["node"])


def listener_text(one: dict[str, Any], first: str) -> str:
    return f"{first}: {one['interface']}, port: {one['port']}, protocol: {one['protocol']}, purpose: {one['purpose']}"


def _gb(count: int) -> str:
    return f"{count / 1e9:.4f} gb"


def _mirrors(figures: dict[str, Any]) -> list[str]:
    if not any(figures.values()):
        return []
    return [
        f"Masters: {figures['masters']}, of these without a synchronised mirror: "
        f"{figures['masters_without_synchronised_mirror']}, syncing: {figures['masters_syncing']}",
        f"Queues whose master is unreachable: {figures['queues_down']}",
        f"Mirrors: {figures['mirrors']}, of these not synchronised: {figures['mirrors_not_synchronised']}",
        f"Largest lag of a mirror: {figures['lag_messages_max']} messages, {figures['lag_bytes_max']} bytes, "
        f"{figures['lag_seconds_max']:g} seconds",
        f"Since the start: {figures['view_changes']} changes of members, {figures['promotions']} promotions here, of "
        f"these by force: {figures['forced_promotions']}",
    ]


def memory_lines(parts: dict[str, int], total: int, unit: str = "gb", space: str = " ") -> list[str]:
    """`queue_procs: 0.0006 gb (0.46 %)`, for each part."""
    size = UNITS[unit]
    return [
        f"{name}: {round(count / size, 4)} {unit} ({round(100 * count / max(total, 1), 2)}{space}%)"
        for name, count in parts.items()
    ]


def _memory(status: dict[str, Any]) -> list[str]:
    memory, limit = status["memory"], status["vm_memory_high_watermark_limit"]
    total = memory["total"]["rss"]
    setting = status["vm_memory_high_watermark_setting"]
    of = f"{setting['relative']} of available memory, " if "relative" in setting else ""
    return [
        f"Total memory used: {_gb(total)}",
        f"Calculation strategy: {memory['strategy']}",
        f"Memory high watermark setting: {of}computed to: {_gb(limit)}",
        "",
        *memory_lines({name: one for name, one in memory.items() if name not in ("total", "strategy")}, total),
    ]


def status(status: dict[str, Any], bold: Style) -> str:
    files, totals = status["file_descriptors"], status["totals"]
    return _sections(
        [
            (
                "Runtime",
                [
                    f"OS PID: {status['pid']}",
                    f"OS: {status['os']}",
                    f"Uptime (seconds): {status['uptime']}",
                    f"Is under maintenance?: {str(status['is_under_maintenance']).lower()}",
                    f"Leveret version: {status['product_version']}",
                    f"RabbitMQ version announced to clients: {status['rabbitmq_version']}",
                    f"Node name: {status['node']}",
                    f"Python version: {status['python_version']}",
                    f"Crypto library: {status['crypto_lib_version']}",
                    f"Cluster heartbeat timeout (net_ticktime): {status['net_ticktime']:g}",
                ],
            ),
            ("Plugins", ["There are none here: what RabbitMQ has as a plugin is built in, or is not there"]),
            ("Data directory", [f"Node data directory: {status['data_directory']}"]),
            ("Config files", [f" * {path}" for path in status["config_files"]]),
            ("Log file(s)", [f" * {path}" for path in status["log_files"]]),
            ("Alarms", map(alarm_text, status["alarms"])),
            ("Partitions", local_lines(status["partition"])),
            (
                "Memory",
                _memory(status),
            ),
            (
                "File Descriptors",
                [
                    f"Total: {files['total_used']}, limit: {files['total_limit']}",
                    f"Sockets: {files['sockets_used']}, limit: {files['sockets_limit']}",
                ],
            ),
            (
                "Free Disk Space",
                [
                    f"Low free disk space watermark: {_gb(status['disk_free_limit'])}",
                    f"Free disk space: {_gb(status['disk_free'])}",
                ],
            ),
            (
                "Totals",
                [
                    f"Connection count: {totals['connection_count']}",
                    f"Queue count: {totals['queue_count']}",
                    f"Virtual host count: {totals['virtual_host_count']}",
                ],
            ),
            ("Mirrored queues", _mirrors(status["mirrored_queues"])),
            ("Listeners", [listener_text(one, "Interface") for one in status["listeners"]]),
        ],
        bold,
    )
