"""Control commands that start, stop and reset a node, change the cluster's membership, and show its status."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import resource
import ssl
import sys
import time
from typing import TYPE_CHECKING, Any

from leveret import __version__
from leveret.base.exit_codes import DATA_ERROR, SOFTWARE, UNAVAILABLE
from leveret.links.frame_types import CONTROL
from leveret.links.link import SELF
from leveret.metadata.model.commands import SetGlobalParameter
from leveret.metadata.model.maintenance_mark import DRAINING, LEAVING, state_of
from leveret.metadata.model.queue_location import has_queues
from leveret.metadata.model.renaming import renamings
from leveret.metadata.rules.global_parameters import CLUSTER_NAME
from leveret.metadata.rules.placement import own_labels
from leveret.node.admin.common.command import (
    ALWAYS,
    FLAG,
    NUMBER,
    OBJECT,
    RUNNING,
    STARTED,
    STOPPED,
    TEXT,
    Commands,
    NoAnswer,
    Refused,
    check_ticket,
)
from leveret.node.admin.nodes import partitions
from leveret.node.admin.queues.mirrors import local_figures
from leveret.node.sockets.peer_socket import CallFailed
from leveret.node.stats.memory import breakdown, named_for_tools
from leveret.node.system.alarms import RESOURCES, sockets_limit
from leveret.node.system.json_answers import read_object
from leveret.sessions.peer import COMPATIBLE_VERSION

if TYPE_CHECKING:
    from leveret.node.admin.dispatch import Control
    from leveret.node.config.settings import Settings

COMMANDS = Commands()

CLUSTERING = "inter-node and CLI tool communication"
AMQP = "AMQP 0-9-1"
ASK_TIMEOUT_S = 5.0
MAINTENANCE_TEXTS = {DRAINING: "marked for maintenance", LEAVING: "leaves the cluster when its clients are gone"}


# -- The process and the application -------------------------------------------------------------------------------


@COMMANDS.add(ALWAYS)
async def ping(control: Control) -> Any:
    """Returns the name, process and version of the node that answers."""
    return {"node": control.name, "pid": os.getpid(), "version": __version__}


@COMMANDS.add(ALWAYS)
async def stop(control: Control) -> Any:
    """Ends the process. The answer is written before that begins: both are steps of the same event loop."""
    control.server.request_stop()
    return {"pid": os.getpid()}


@COMMANDS.add(ALWAYS)
async def stop_app(control: Control) -> None:
    """Stops the app. Does not take the lock `life`, because it also ends a start that waits for other nodes."""
    await control.server.stop_app()


@COMMANDS.add(ALWAYS)
async def start_app(control: Control) -> None:
    from leveret.node.sockets.listeners import StartFailed

    async with control.life:
        pass  # A node that is being reset must not start.
    try:
        await control.server.start_app()
    except StartFailed as error:
        raise Refused(UNAVAILABLE, str(error)) from None


@COMMANDS.add(ALWAYS)
async def app_state(control: Control) -> Any:
    """Returns the state of the app, for await_startup and check_running."""
    seen = control.server.node.pausing.partitions if control.server.prepared else None
    paused = seen.reason if seen is not None and seen.paused else None
    state = {"running": control.server.prepared, "starting": control.is_starting, "paused": paused}
    if control.is_starting and control.server.node is not None:
        state["waiting"] = control.node.cluster.why_waiting()
    return state


@COMMANDS.add(ALWAYS, ticket=TEXT)
async def outcome(control: Control, ticket: str) -> Any:
    """Returns the answer of a command whose caller lost the connection."""
    if ticket not in control.outcomes:
        raise Refused(UNAVAILABLE, "the node does not know that command: it was restarted meanwhile")
    answer = control.outcomes[ticket]
    return {"answer": None if answer is None else json.loads(answer), "progress": control.progress}


@COMMANDS.add(ALWAYS, ticket=TEXT, command=TEXT, arguments=OBJECT)
async def begin(control: Control, ticket: str, command: str, arguments: dict[str, Any]) -> None:
    """Begins a command that takes long; its progress and its `outcome` can be asked for."""
    check_ticket(ticket)
    control.begin(ticket, command, arguments)


# -- Membership ----------------------------------------------------------------------------------------------------


@COMMANDS.add(STOPPED, host=TEXT, port=NUMBER, name=TEXT.or_none())
async def join_cluster(control: Control, host: str, port: int, name: str | None) -> Any:
    if name == control.name:
        raise Refused(SOFTWARE, f"Error: cannot cluster node with itself: {name}")
    async with control.life:
        there = await _ask(control, host, port, "ping")
        # Only the part before the @ is compared: the caller may know the host by another name than the node does.
        if name is not None and name.partition("@")[0] != there["node"].partition("@")[0]:
            raise Refused(UNAVAILABLE, f"the node at {host}:{port} is {there['node']}, not {name}")
        members = (await _ask(control, host, port, "cluster_nodes"))["members"]
        known = members.get(control.name)
        if known == control.server.uuid:
            return {"already_member": True}  # To join again would delete its data.
        if known is not None:
            raise Refused(
                UNAVAILABLE,
                f"node {there['node']} thinks that {control.name} is in its cluster already, with data that is gone "
                f"here. Have it forget that first: leveretctl -n {there['node']} forget_cluster_node {control.name}",
            )
        await control.server.join((host, port))
    return {"already_member": False}


async def _ask(control: Control, host: str, port: int, command: str) -> Any:
    """Asks a node that need not be in this one's cluster. Raises Refused."""
    payload = json.dumps({"command": command}).encode()
    try:
        answer = read_object(await control.server.peers.call((host, port), CONTROL, payload, ASK_TIMEOUT_S))
    except CallFailed as error:
        if error.reason == SELF:
            raise Refused(SOFTWARE, f"Error: cannot cluster node with itself: {control.name}") from None
        text = f"no node answers at {host}:{port}: {error}. Is that its cluster port, and has it the same cookie?"
        raise Refused(UNAVAILABLE, text) from None
    except ValueError as error:
        raise Refused(UNAVAILABLE, f"the answer of {host}:{port} cannot be read: {error}") from None
    if "error" in answer:
        raise Refused(UNAVAILABLE, f"the node at {host}:{port} answers: {answer['error']['text']}")
    return answer["ok"]


@COMMANDS.add(STOPPED, force=FLAG)
async def reset(control: Control, force: bool) -> None:
    async with control.life:
        await control.server.reset(force)


@COMMANDS.add(STOPPED)
async def force_boot(control: Control) -> None:
    async with control.life:
        await control.server.force_boot()


@COMMANDS.add(RUNNING, name=TEXT)
async def forget_cluster_node(control: Control, name: str) -> None:
    member = next((one for one in control.node.cluster.everybody() if one.name == name), None)
    if member is None and not has_queues(control.node.metadata, name):
        raise Refused(UNAVAILABLE, f"The node selected is not in the cluster: {name}")
    if member is not None and member.running and member in control.node.cluster.attending():
        raise Refused(UNAVAILABLE, f"the witness {name} is running: stop its process before it is removed")
    if member is not None and member.running:
        text = f"Leveret on node {name} must be stopped with 'leveretctl -n {name} stop_app' before it can be removed"
        raise Refused(UNAVAILABLE, text)
    await control.node.cluster.forget(name)


@COMMANDS.add(RUNNING, old=TEXT, new=TEXT)
async def rename_cluster_node(control: Control, old: str, new: str) -> None:
    is_begun = any(one[:2] == (old, new) for one in renamings(control.node.metadata))
    if control.member(old) is None and not is_begun:
        raise Refused(UNAVAILABLE, f"The node selected is not in the cluster: {old}")
    if control.member(new) is not None and not is_begun:
        raise Refused(UNAVAILABLE, f"There is a node of that name in the cluster: {new}")
    if not new or len(new.encode("utf-8", "replace")) > 255:
        raise Refused(DATA_ERROR, "the name of a node has 1 to 255 bytes")
    await control.node.cluster.rename(old, new)


@COMMANDS.add(STARTED)
async def cluster_nodes(control: Control) -> Any:
    """Returns the members, for await_online_nodes, and for a node that is to join."""
    members = control.node.cluster.members()
    return {"members": {one.name: one.uuid for one in members}, "running": [one.name for one in members if one.running]}


@COMMANDS.add(RUNNING, name=TEXT)
async def set_cluster_name(control: Control, name: str) -> None:
    await control.change(SetGlobalParameter(CLUSTER_NAME, name))


def cluster_name(control: Control) -> str:
    name = control.node.metadata.global_parameters.get(CLUSTER_NAME)
    return name if isinstance(name, str) else control.server.settings.cluster_name


# -- How it is -----------------------------------------------------------------------------------------------------


@COMMANDS.add(STARTED)
async def cluster_status(control: Control) -> Any:
    """Returns RabbitMQ's fields, and those of the consensus. Each node is asked for what only it knows."""
    from leveret.node.admin.nodes.diagnostics import FEATURE_FLAGS

    cluster = control.node.cluster
    members = cluster.members()
    running = [member.name for member in members if member.running]
    answers = await asyncio.gather(*(_status_of(control, name) for name in running))
    # A node that was lost just now is missing; the list of running nodes will say so the next time.
    told = {name: answer for name, answer in zip(running, answers, strict=True) if answer is not None}
    seen = {name: one["partition"] for name, one in told.items()}
    return {
        "alarms": [alarm for one in told.values() for alarm in one["alarms"]],
        "cluster_name": cluster_name(control),
        "disk_nodes": [member.name for member in members],
        "feature_flags": [{"name": name, "state": "enabled"} for name in FEATURE_FLAGS],
        "listeners": {name: one["listeners"] for name, one in told.items()},
        "maintenance_status": {name: _maintenance(control, name) for name in told},
        "partitions": partitions.parted(seen, running),
        "unreachable": {name: one["unreachable"] for name, one in seen.items() if one["unreachable"]},
        "waiting_for": {name: one["waiting_for"] for name, one in seen.items() if one.get("waiting_for")},
        "detached": {
            name: one["detached"]
            for name, one in seen.items()
            if any(one.get("detached", {}).get(key) for key in ("queues", "settled"))
        },
        "paused_nodes": [name for name, one in seen.items() if one["paused_since_ms"] is not None],
        "partition_handling": {name: one["handling"] for name, one in seen.items()},
        "ram_nodes": [],
        "running_nodes": running,
        "versions": {name: one["version"] for name, one in told.items()},
        "leader": cluster.leader,
        "has_majority": cluster.has_majority,
        "witnesses": [
            {"name": one.name, "address": one.address, "voter": one.voter, "running": one.running}
            for one in cluster.attending()
        ],
        "members": [
            {
                "name": one.name,
                "address": one.address,
                "voter": one.voter,
                "priority": one.priority,
                "labels": own_labels(control.node.metadata, one.name),
            }
            for one in members
        ],
    }


def _maintenance(control: Control, name: str) -> str:
    state = state_of(control.node.metadata, name)
    return MAINTENANCE_TEXTS.get(state or "", "not under maintenance")


async def _status_of(control: Control, name: str) -> dict[str, Any] | None:
    try:
        answer: dict[str, Any] = await control.at(name, "local_status", {})
        return answer
    except (NoAnswer, Refused):
        return None


@COMMANDS.add(STARTED)
async def local_status(control: Control) -> Any:
    """Returns the part of `cluster_status` that only this node knows."""
    version = {
        "rabbitmq_name": "Leveret",
        "rabbitmq_version": __version__,
        "erlang_version": f"Python {platform.python_version()}",
    }
    seen = partitions.local(control)
    return {
        "alarms": local_alarms(control), "listeners": listeners(control), "version": version, "partition": seen
    }  # fmt: skip


@COMMANDS.add(RUNNING)
async def alarms(control: Control) -> Any:
    return {"alarms": local_alarms(control)}


@COMMANDS.add(RUNNING)
async def status(control: Control) -> Any:
    from leveret.node.admin.nodes.diagnostics import log_files

    node, settings = control.node, control.server.settings
    parts, used = await breakdown(node)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {
        "pid": os.getpid(),
        "os": platform.system(),
        "uptime": int(time.monotonic() - control.started_s),
        "is_under_maintenance": state_of(node.metadata, control.name) is not None,
        "product_name": "Leveret",
        "product_version": __version__,
        "python_version": sys.version.split()[0],
        "node": control.name,
        "net_ticktime": settings.silence_ms / 1000,
        "rabbitmq_version": COMPATIBLE_VERSION,
        "crypto_lib_version": ssl.OPENSSL_VERSION,
        "release_series_support_status": "supported",
        "data_directory": settings.data_dir,
        "config_files": list(settings.config_files),
        "log_files": log_files(control),
        "enabled_plugin_file": "",
        "active_plugins": [],
        "alarms": local_alarms(control),
        "memory": {**named_for_tools(parts), "strategy": "rss", "total": {"rss": used}},
        "vm_memory_calculation_strategy": "rss",
        "vm_memory_high_watermark_limit": node.alarms.memory_limit_bytes,
        "vm_memory_high_watermark_setting": _watermark(settings),
        "disk_free": node.alarms.disk_free_bytes,
        "disk_free_limit": node.alarms.disk_limit_bytes,
        "file_descriptors": {
            "total_used": _open_files(),
            "total_limit": soft,
            "sockets_used": len(node.broker.connections),
            "sockets_limit": sockets_limit(soft),
        },
        "totals": {
            "connection_count": len(node.broker.connections),
            "queue_count": sum(node.metadata.queue_counts.values()),
            "virtual_host_count": len(node.metadata.vhosts),
        },
        "mirrored_queues": local_figures(control),
        "partition": partitions.local(control),
        "listeners": listeners(control),
    }


def _watermark(settings: Settings) -> dict[str, float | int | None]:
    if settings.memory_watermark_relative is not None:
        return {"relative": settings.memory_watermark_relative}
    return {"absolute": settings.memory_watermark_absolute}


def _open_files() -> int | None:
    try:
        return len(os.listdir("/proc/self/fd"))
    except FileNotFoundError:
        return None  # No Linux.


def local_alarms(control: Control) -> list[dict[str, str]]:
    own = control.node.alarms.own()
    short = [name for name in RESOURCES if name in own]
    return [{"type": "resource_limit", "resource": name, "node": control.name} for name in short]


def listeners(control: Control) -> list[dict[str, Any]]:
    """Returns the node's listeners. Of ports that the system chose, only the first of each kind is known."""
    settings, ports = control.server.settings, control.server.ports
    found = []
    for listeners, name, protocol, purpose in (
        ((settings.cluster_listener,), "cluster", "clustering", CLUSTERING),
        (settings.tcp_listeners, "amqp", "amqp", AMQP),
        (settings.ssl_listeners, "amqps", "amqp/ssl", f"{AMQP} over TLS"),
        (settings.mqtt_listeners, "mqtt", "mqtt", "MQTT"),
        (settings.mqtt_tls_listeners, "mqtts", "mqtt/ssl", "MQTT over TLS"),
        (settings.web_mqtt_listeners, "web_mqtt", "http/web-mqtt", "MQTT over WebSocket"),
        (settings.web_mqtt_tls_listeners, "web_mqtts", "https/web-mqtt", "MQTT over WebSocket and TLS"),
        (settings.stomp_listeners, "stomp", "stomp", "STOMP"),
        (settings.stomp_tls_listeners, "stomps", "stomp/ssl", "STOMP over TLS"),
        (settings.web_stomp_listeners, "web_stomp", "http/web-stomp", "STOMP over WebSocket"),
        (settings.web_stomp_tls_listeners, "web_stomps", "https/web-stomp", "STOMP over WebSocket and TLS"),
        (settings.management_listeners, "management", "http", "HTTP API"),
        (settings.management_tls_listeners, "management_tls", "https", "HTTP API over TLS (HTTPS)"),
        (settings.prometheus_listeners, "prometheus", "http/prometheus", "Prometheus exporter API over HTTP"),
    ):
        if name not in ports:
            continue  # The listener is closed.
        for place, listener in enumerate(listeners):
            is_known = len(listeners) > 1 and listener.port  # Else `ports` has the last one's, of several.
            port = listener.port if place or is_known else ports[name]
            where = {"interface": listener.host or "[::]", "node": control.name, "port": port}
            found.append({**where, "protocol": protocol, "purpose": purpose})
    return found
