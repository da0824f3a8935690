"""The environment of a broker under test: real, except for what a test decides.

A test sets whether memory or disk is short, and syncs are left out unless they are wanted. Everything else is real:
files, sockets, threads. The faults are control commands (`COMMANDS`) beside those of leveretctl, so that they work the
same in a broker of this process and of another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from leveret.base.exit_codes import UNAVAILABLE, USAGE
from leveret.metadata.defaults import first_boot
from leveret.metadata.model import commands as c
from leveret.metadata.model.hidden_queues import is_hidden_queue
from leveret.metadata.model.records import Permission
from leveret.metadata.rules.global_parameters import CLUSTER_ID, CLUSTER_NAME
from leveret.metadata.rules.passwords import SALT_BYTES, verify_password
from leveret.metadata.store import PREDECLARED
from leveret.node.admin import dispatch as control
from leveret.node.admin.common.command import FLAG, RUNNING, TEXT, TEXTS, Commands, Refused
from leveret.node.admin.nodes import runtime_settings
from leveret.node.server import Server
from leveret.node.system.environment import RealEnvironment
from leveret.storage.segments.disk import FileDisk

if TYPE_CHECKING:
    from leveret.metadata.store import Applied, Metadata
    from leveret.node.admin.dispatch import Control
    from leveret.node.config.settings import Listener, Settings
    from leveret.node.node import Node

RESOURCES: Final = ("memory", "disk")
KEPT_PARAMETERS: Final = (CLUSTER_ID, CLUSTER_NAME)
NOT_FOUND: Final = 404

COMMANDS: Final = Commands()


class FaultyDisk(FileDisk):
    """Real files. Without `synced` nothing is synced, and `is_short` reports a full disk."""

    def __init__(self, root: str, synced: bool) -> None:
        super().__init__(root)
        self.synced = synced
        self.is_short = False

    def sync(self, path: str) -> None:
        if self.synced:
            super().sync(path)

    def sync_folder(self, path: str) -> None:
        if self.synced:
            super().sync_folder(path)

    def free_bytes(self) -> int:
        return 0 if self.is_short else super().free_bytes()


class FaultyEnvironment(RealEnvironment):
    """The environment of a broker under test. A test sets `memory_is_short` and `faulty_disk.is_short`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, data_dir: str, synced: bool, shared: bool) -> None:
        self.faulty_disk = FaultyDisk(data_dir, synced)
        super().__init__(loop, data_dir, self.faulty_disk)
        self.shared = shared  # In the test's process, whose size says nothing about the broker.
        self.memory_is_short = False

    def memory_used(self) -> int:
        if self.memory_is_short:
            return 1 << 62
        return 0 if self.shared else super().memory_used()

    def has_unused_memory(self) -> bool:
        return not self.shared and super().has_unused_memory()

    def release_memory(self) -> None:
        if not self.memory_is_short:
            super().release_memory()


def make_server(settings: Settings, cookie: bytes, synced: bool, shared: bool) -> Server:
    """Makes a server with such an environment, for the running event loop."""
    environment = FaultyEnvironment(asyncio.get_running_loop(), settings.data_dir, synced, shared)
    server = Server(settings, environment, cookie)
    server.control.commands = {**control.COMMANDS, **COMMANDS.table}
    return server


def _parts(control: Control) -> tuple[Server, Node, FaultyEnvironment]:
    server = cast(Server, control.server)
    if server.node is None:
        raise Refused(UNAVAILABLE, "the broker is being stopped")
    return server, server.node, cast(FaultyEnvironment, server.environment)


def pinned(settings: Settings, ports: Mapping[str, int]) -> Settings:
    """Returns settings with the ports that the system chose, so that listeners can be opened again at the same
    ports."""

    def pin(listeners: tuple[Listener, ...], name: str) -> tuple[Listener, ...]:
        return tuple(one._replace(port=one.port or ports[name]) for one in listeners)

    return replace(
        settings,
        tcp_listeners=pin(settings.tcp_listeners, "amqp"),
        ssl_listeners=pin(settings.ssl_listeners, "amqps"),
        mqtt_listeners=pin(settings.mqtt_listeners, "mqtt"),
        mqtt_tls_listeners=pin(settings.mqtt_tls_listeners, "mqtts"),
        web_mqtt_listeners=pin(settings.web_mqtt_listeners, "web_mqtt"),
        web_mqtt_tls_listeners=pin(settings.web_mqtt_tls_listeners, "web_mqtts"),
        stomp_listeners=pin(settings.stomp_listeners, "stomp"),
        stomp_tls_listeners=pin(settings.stomp_tls_listeners, "stomps"),
        web_stomp_listeners=pin(settings.web_stomp_listeners, "web_stomp"),
        web_stomp_tls_listeners=pin(settings.web_stomp_tls_listeners, "web_stomps"),
    )


# -- Faults --------------------------------------------------------------------------------------------------------


@COMMANDS.add(RUNNING, name=TEXT.or_none())
async def drop_connections(control: Control, name: str | None) -> Any:
    """Cuts connections as a broken network would. `name`: a connection_name, or the addresses of a connection."""
    _, node, _ = _parts(control)
    dropped = 0
    for client in list(node.clients):
        own = client.connection.client_properties.get("connection_name")
        if name in (None, own, str(client.connection.peer)):
            client.transport.abort()
            dropped += 1
    return {"dropped": dropped}


@COMMANDS.add(RUNNING, on=FLAG)
async def refuse_connections(control: Control, on: bool) -> None:
    """Closes the listeners, or opens them again. Open connections stay."""
    server, node, _ = _parts(control)
    if on:
        if server.listeners.servers:
            server.settings = pinned(server.settings, server.ports)
        server.listeners.close()
    elif not server.listeners.servers:
        await server.listeners.open(node)


@COMMANDS.add(RUNNING, on=FLAG)
async def refuse_publishes(control: Control, on: bool) -> None:
    _parts(control)[1].broker.refusing = on


@COMMANDS.add(RUNNING, nodes=TEXTS, on=FLAG)
async def part(control: Control, nodes: list[str], on: bool) -> None:
    """Cuts the links with these nodes, or restores them."""
    peers = _parts(control)[0].peers
    assert peers is not None
    peers.bar(peers.barred | set(nodes) if on else peers.barred - set(nodes))


@COMMANDS.add(RUNNING, resource=TEXT, on=FLAG)
async def be_short(control: Control, resource: str, on: bool) -> None:
    """Makes a resource short; the node measures it, and sets its alarm by itself."""
    if resource not in RESOURCES:
        raise Refused(USAGE, f"an alarm is about {' or '.join(RESOURCES)}, not {resource}")
    _, node, environment = _parts(control)
    if resource == "memory":
        environment.memory_is_short = on
    else:
        environment.faulty_disk.is_short = on
    node.look()


@COMMANDS.add(RUNNING)
async def clear_faults(control: Control) -> None:
    server, node, environment = _parts(control)
    node.broker.refusing = False
    if server.peers is not None:
        server.peers.bar(frozenset())
    environment.memory_is_short = environment.faulty_disk.is_short = False
    for resource in RESOURCES:
        node.alarms.clear_by_hand(resource)
    node.look()
    await refuse_connections(control, on=False)


# -- A fresh start -------------------------------------------------------------------------------------------------


@COMMANDS.add(RUNNING)
async def delete_everything(control: Control) -> None:
    """Deletes all that was declared or set since the first boot. Connections stay, except those to a deleted vhost."""
    server, node, _ = _parts(control)
    for name in runtime_settings.NAMES:
        await runtime_settings.clear_env(control, name, everywhere=False)
    salt = server.environment.random_bytes(SALT_BYTES)
    for step in fresh_start(node.metadata, server.settings, salt):
        for applied in await asyncio.gather(*(_change(control, command) for command in step)):
            if applied.refused is not None and applied.refused.code != NOT_FOUND:  # Deleted with something else.
                raise Refused(UNAVAILABLE, applied.refused.text)


@COMMANDS.add(RUNNING, products=TEXTS.or_none(), reason=TEXT)
async def close_clients(control: Control, products: list[str] | None, reason: str) -> Any:
    """Closes all connections in order, or those of these client libraries (client property `product`)."""
    _, node, _ = _parts(control)
    closed = 0
    for connection in list(node.broker.connections):
        if products is None or connection.client_properties.get("product") in products:
            connection.close(320, reason)
            closed += 1
    node.turn()  # Sends connection.close now: a client that publishes next must find it.
    return {"closed": closed}


async def _change(control: Control, command: c.Command) -> Applied:
    return await cast("Node", control.node).cluster.change(command)


def fresh_start(metadata: Metadata, settings: Settings, salt: bytes) -> list[list[c.Command]]:
    """Returns the commands that restore the state of a first boot, in steps; the order within a step is free."""
    contents = _contents(metadata, settings.default_vhost)
    return [_vhosts(metadata, settings), _users(metadata, settings, salt), contents]


def _vhosts(metadata: Metadata, settings: Settings) -> list[c.Command]:
    vhost = settings.default_vhost
    commands: list[c.Command] = [c.DeleteVhost(name) for name in metadata.vhosts if name != vhost]
    if vhost not in metadata.vhosts:
        commands.append(c.AddVhost(vhost, "Default virtual host"))
    elif metadata.vhosts[vhost].limits:
        commands.append(c.ClearVhostLimits(vhost))
    commands += [c.ClearGlobalParameter(name) for name in metadata.global_parameters if name not in KEPT_PARAMETERS]
    return commands


def _users(metadata: Metadata, settings: Settings, salt: bytes) -> list[c.Command]:
    vhost, name = settings.default_vhost, settings.default_user
    wanted = Permission(settings.default_configure, settings.default_write, settings.default_read)
    _, put_user, set_permissions = first_boot(
        salt, name, settings.default_pass, vhost, wanted, settings.default_user_tags
    )
    commands: list[c.Command] = [c.DeleteUser(one) for one in metadata.users if one != name]
    user = metadata.users.get(name)
    is_same = (
        user is not None
        and user.tags == tuple(settings.default_user_tags)
        and verify_password(settings.default_pass, user.password_hash, user.hashing)
    )
    if not is_same:
        commands.append(put_user)
    if user is not None and user.limits:
        commands.append(c.ClearUserLimits(name))
    if metadata.permissions.get((name, vhost)) != wanted:
        commands.append(set_permissions)
    if (name, vhost) in metadata.topic_permissions:
        commands.append(c.ClearTopicPermissions(name, vhost))
    return commands


def _contents(metadata: Metadata, vhost: str) -> list[c.Command]:
    predeclared = {name for name, _, _ in PREDECLARED}
    queues: list[c.Command] = [
        c.DeleteQueue(vhost, spec.name, spec.id)
        for spec in metadata.queues.values()
        if spec.vhost == vhost and not is_hidden_queue(spec.name)  # Hidden queues are deleted with their exchanges.
    ]
    exchanges: list[c.Command] = [
        c.DeleteExchange(vhost, name)
        for where, name in metadata.exchanges
        if where == vhost and name not in predeclared
    ]
    between: list[c.Command] = [
        c.Unbind(vhost, one.source, one.destination_kind, one.destination, one.key, one.arguments)
        for source in predeclared
        if source  # Bindings of the default exchange are deleted with the queue.
        for one in metadata.bindings_from(vhost, source)
        if one.destination_kind == "exchange" and one.destination in predeclared
    ]
    policies: list[c.Command] = [
        c.ClearPolicy(vhost, name, operator)
        for kept, operator in ((metadata.policies, False), (metadata.operator_policies, True))
        for where, name in kept
        if where == vhost
    ]
    parameters: list[c.Command] = [
        c.ClearParameter(component, vhost, name) for component, where, name in metadata.parameters if where == vhost
    ]
    return queues + exchanges + between + policies + parameters
