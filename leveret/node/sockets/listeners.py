"""The listeners of a node: AMQP, MQTT and STOMP (also over WebSocket), the management port, and Prometheus.

Those for clients are closed while the node is paused (`partition_pause`) or in maintenance (`maintenance`), and
opened again at the ports they had: clients that know a port that the system chose must find it again. The others stay
open, so that such a node can be asked why. If another process has taken a port meanwhile, the node tries again every
second, and says so in its log.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import ssl
from typing import TYPE_CHECKING, Final, Protocol

from leveret.client.tls import default_context
from leveret.node.config.settings import Listener
from leveret.node.sockets.amqp_socket import AmqpSocket
from leveret.node.sockets.mqtt_socket import WEB_SUBPROTOCOLS, MqttSocket
from leveret.node.sockets.stomp_socket import STOMP_SUBPROTOCOLS, StompSocket
from leveret.node.sockets.tls_failures import tell_failures
from leveret.node.sockets.tls_handshakes import TlsHandshakes, TlsServer
from leveret.node.sockets.web_socket import Service, WebSocket

if TYPE_CHECKING:
    from leveret.node.config.settings import Settings, TlsOptions
    from leveret.node.node import Node
    from leveret.node.server import Server
    from leveret.node.sockets.proxy_protocol import Header

logger = logging.getLogger("leveret")

TLS_VERSIONS: Final = {"tlsv1.2": ssl.TLSVersion.TLSv1_2, "tlsv1.3": ssl.TLSVersion.TLSv1_3}
REOPEN_S: Final = 1.0
CLIENT_PORTS: Final = (
    "amqp", "amqps", "mqtt", "mqtts", "web_mqtt", "web_mqtts", "stomp", "stomps", "web_stomp", "web_stomps",
)  # fmt: skip


class Accepting(Protocol):
    """Makes the protocol of an accepted socket. `header`: of the PROXY protocol, where a listener has it."""

    def __call__(self, header: Header | None = None) -> asyncio.Protocol: ...


class StartFailed(Exception):
    """The node cannot start; the text says why, and what to do."""


class Listeners:
    """The listeners of a process for AMQP, MQTT, STOMP, HTTP and Prometheus."""

    def __init__(self, server: Server) -> None:
        self.server = server  # Its settings are read whenever something is opened.
        self.loop = server.loop
        self.servers: list[asyncio.Server | TlsServer] = []
        self.ports: dict[str, int] = {}
        # The open ports: those of CLIENT_PORTS, management, management_tls, prometheus.
        self.management_url: str | None = None  # By which others refer clients to this node.
        self.page_url: str | None = None  # For people; any of the processes of this machine may answer.
        self.management_urls: dict[str, str] = {}  # The first one with TLS (https), and the first without (http).
        # The servers of the listeners for clients, by name and by place, and those for HTTP, by name.
        self._for_clients: dict[tuple[str, int], asyncio.Server | TlsServer] = {}
        self._for_http: dict[str, list[asyncio.Server | TlsServer]] = {"management": [], "prometheus": []}
        self._client_ports: dict[tuple[str, int], int] = {}  # Their ports, by name and by place.
        self._generation = 0  # How often they were closed.
        self._opened: Node | None = None  # The node that clients may use, unless it is paused or in maintenance.
        self._reopening: asyncio.Task[None] | None = None
        self.entrance = TlsHandshakes(self.loop)

    @property
    def settings(self) -> Settings:
        return self.server.settings

    @property
    def is_suspended(self) -> bool:
        """True if all listeners are closed, by a command or because the app does not run."""
        return self._opened is None

    def close(self) -> None:
        self._opened = None
        self._client_ports.clear()
        self._shut_for_clients()
        for server in self.servers:
            server.close()
        self.servers.clear()
        for servers in self._for_http.values():
            servers.clear()
        self.entrance.close()
        self.ports.clear()
        self.management_url = self.page_url = None
        self.management_urls = {}

    async def open(self, node: Node) -> None:
        self._opened = node
        node.pausing.on_paused, node.pausing.on_resumed = self._on_paused, self._on_resumed
        node.maintenance.on_closed, node.maintenance.on_opened = self._on_paused, self._on_resumed
        if _may_serve(node):
            await self._open_for_clients(node)
        await self._open_for_http(node)

    async def follow_settings(self) -> None:
        """Opens listeners that the settings have by now, and closes those that they no longer have. Connections that
        clients have stay. Raises StartFailed."""
        node = self._opened
        if node is None:
            return
        wanted = {(name, place) for name, _, place, _ in self._client_listeners()}
        for name, place in self._for_clients.keys() - wanted:
            self._shut(self._for_clients.pop((name, place)))
            self._client_ports.pop((name, place), None)
            self.ports.pop(name, None)
        if _may_serve(node):
            await self._open_for_clients(node)
        settings = self.settings
        if not settings.management_listeners and not settings.management_tls_listeners:
            self._shut_for_http("management")
            self.management_url, self.page_url, self.management_urls = None, None, {}
        if not settings.prometheus_listeners:
            self._shut_for_http("prometheus")
        await self._open_for_http(node)
        self.server.announce()

    async def _open_for_http(self, node: Node) -> None:
        if not self._for_http["management"]:
            await self._open_management(node)
        if not self._for_http["prometheus"]:
            await self._open_prometheus(node)
        if self.management_url is not None or "prometheus" in self.ports:
            # Imported in a thread, now: otherwise the loop would wait for disk and compiler at the first request.
            self.loop.run_in_executor(None, importlib.import_module, "leveret.management.app")

    # -- Clients -------------------------------------------------------------------------------------------------

    async def _open_for_clients(self, node: Node) -> bool:
        """Opens all listeners for clients that are closed, or none. Returns False if they were to be closed again
        meanwhile."""
        generation, opened = self._generation, []
        try:
            for name, tls, place, listener in self._client_listeners():
                if (name, place) in self._for_clients:
                    continue
                port = self._client_ports.get((name, place), listener.port)
                accept = _accepting(name, node)
                proxied = _is_proxied(name, self.settings)
                opened.append((name, place, await self._listen(accept, listener, port, tls, proxied)))
        except OSError as error:
            for _, _, server in opened:
                server.close()
            raise StartFailed(
                f"cannot listen at {listener}: {error.strerror or error}. Is another broker running there? "
                "Choose another address with --host and --port"
            ) from None
        if generation != self._generation:
            for _, _, server in opened:
                server.close()
            return False
        for name, place, server in opened:
            self.servers.append(server)
            self._for_clients[name, place] = server
            port = self._client_ports[name, place] = int(server.sockets[0].getsockname()[1])
            self.ports.setdefault(name, port)
        return True

    def _client_listeners(self) -> list[tuple[str, ssl.SSLContext | None, int, Listener]]:
        settings = self.settings
        found: list[tuple[str, ssl.SSLContext | None, int, Listener]] = []
        for name, options, listeners in (
            ("amqp", None, settings.tcp_listeners),
            ("amqps", settings.tls, settings.ssl_listeners),
            ("mqtt", None, settings.mqtt_listeners),
            ("mqtts", settings.tls, settings.mqtt_tls_listeners),
            ("web_mqtt", None, settings.web_mqtt_listeners),
            ("web_mqtts", settings.web_mqtt_tls, settings.web_mqtt_tls_listeners),
            ("stomp", None, settings.stomp_listeners),
            ("stomps", settings.tls, settings.stomp_tls_listeners),
            ("web_stomp", None, settings.web_stomp_listeners),
            ("web_stomps", settings.web_stomp_tls, settings.web_stomp_tls_listeners),
        ):
            context = tls_context(options, _PROTOCOLS[_plain(name)]) if options and listeners else None
            found += [(name, context, place, listener) for place, listener in enumerate(listeners)]
        return found

    async def _listen(
        self,
        accept: Accepting,
        listener: Listener,
        port: int,
        tls: ssl.SSLContext | None,
        proxied: bool = False,
        is_own: bool = False,
    ) -> asyncio.Server | TlsServer:
        """Listens at an address. `is_own`: at one that no other process of this machine has."""
        # The kernel spreads connections over all processes that listen at the same port. A port that is one's own must
        # not be shared by mistake, for instance with another service of this machine.
        shares = self.entrance.shares_ports = self.settings.processes > 1 and not is_own
        host, backlog, seconds = listener.host or None, self.settings.backlog, tls_timeout_s(self.settings)
        if proxied:
            return await self.entrance.listen_for_proxies(accept, host, port, tls, seconds, backlog)
        if tls is not None:
            return await self.entrance.listen(accept, host, port, tls, seconds, backlog)
        return await self.loop.create_server(accept, host, port, backlog=backlog, reuse_port=shares or None)

    def _shut_for_clients(self) -> None:
        self._generation += 1
        for server in self._for_clients.values():
            self._shut(server)
        self._for_clients.clear()
        for name in CLIENT_PORTS:
            self.ports.pop(name, None)

    def _shut_for_http(self, name: str) -> None:
        for server in self._for_http[name]:
            self._shut(server)
        self._for_http[name].clear()
        for port in (name, f"{name}_tls"):
            self.ports.pop(port, None)

    def _shut(self, server: asyncio.Server | TlsServer) -> None:
        server.close()
        if server in self.servers:
            self.servers.remove(server)

    def _on_paused(self) -> None:
        self._shut_for_clients()
        self.server.announce()

    def _on_resumed(self) -> None:
        node = self._opened
        if node is not None and (self._reopening is None or self._reopening.done()):
            self._reopening = self.loop.create_task(self._reopen(node))

    async def _reopen(self, node: Node) -> None:
        told = ""
        while self._opened is node and _may_serve(node):
            try:
                if await self._open_for_clients(node):
                    self.server.announce()
                    return
            except StartFailed as error:
                if str(error) != told:
                    told = str(error)
                    logger.error("%s; trying again", told)
                await asyncio.sleep(REOPEN_S)

    async def reopened(self) -> None:
        """Returns when listeners that are to be opened again are, or are closed again meanwhile."""
        if self._reopening is not None:
            await asyncio.wait([self._reopening])

    # -- HTTP ----------------------------------------------------------------------------------------------------

    async def _open_management(self, node: Node) -> None:
        settings = self.settings
        context = None if settings.management_tls is None else tls_context(settings.management_tls, "HTTP")
        for listeners, tls in ((settings.management_listeners, None), (settings.management_tls_listeners, context)):
            for listener in listeners:
                is_own = settings.processes > 1 and self.management_url is None  # It comes first.
                try:
                    server = await self._listen(
                        lambda header=None: self.server.managed(node).http.accept(),  # Only then.
                        listener,
                        listener.port,
                        tls,
                        is_own=is_own,
                    )
                except OSError as error:
                    raise StartFailed(
                        f"cannot listen at {listener} for HTTP: {error.strerror or error}. "
                        "Choose another port with --management-port, or none"
                    ) from None
                self.servers.append(server)
                self._for_http["management"].append(server)
                port = int(server.sockets[0].getsockname()[1])
                self.ports["management_tls" if tls else "management"] = port
                host = settings.cluster_host if listener.host in ("", "0.0.0.0", "::") else listener.host
                scheme = "https" if tls else "http"
                url = f"{scheme}://{Listener(host, port)}{settings.management_prefix}"
                self.management_url = self.management_url or url
                self.page_url = self.page_url or (None if is_own else url)
                self.management_urls.setdefault(scheme, url)
        if self.management_url is not None:
            node.samples.start()

    async def _open_prometheus(self, node: Node) -> None:
        for listener in self.settings.prometheus_listeners:
            try:
                accept: Accepting = lambda header=None: self.server.managed(node).metrics.accept()  # noqa: E731
                server = await self._listen(accept, listener, listener.port, None, is_own=True)
            except OSError as error:
                text = f"cannot listen at {listener} for Prometheus: {error.strerror or error}"
                if self.settings.prometheus_is_wanted:
                    raise StartFailed(f"{text}. Choose another prometheus.tcp.port, or none") from None
                logger.warning("%s; metrics are at the management port only", text)
                continue
            self.servers.append(server)
            self._for_http["prometheus"].append(server)
            self.ports["prometheus"] = int(server.sockets[0].getsockname()[1])
            node.samples.start()


_PROTOCOLS: Final = {"amqp": "AMQP", "mqtt": "MQTT", "web_mqtt": "MQTT", "stomp": "STOMP", "web_stomp": "STOMP"}


def _plain(name: str) -> str:
    """Returns the name of a port of CLIENT_PORTS as if it were without TLS."""
    return name.removesuffix("s")


def _is_proxied(name: str, settings: Settings) -> bool:
    return {
        "amqp": settings.proxy_protocol,
        "mqtt": settings.mqtt_proxy_protocol,
        "web_mqtt": settings.web_mqtt_proxy_protocol,
        "stomp": settings.stomp_proxy_protocol,
        "web_stomp": settings.web_stomp_proxy_protocol,
    }[_plain(name)]


def _accepting(name: str, node: Node) -> Accepting:
    """Returns what makes the socket of a client, for one of CLIENT_PORTS."""
    protocol = _PROTOCOLS[_plain(name)]
    kind = {"AMQP": AmqpSocket, "MQTT": MqttSocket, "STOMP": StompSocket}[protocol]
    if not name.startswith("web_"):
        return lambda header=None: kind(node, header)
    settings = node.settings
    if protocol == "MQTT":
        service = Service(settings.web_mqtt_path, WEB_SUBPROTOCOLS, message_bytes_max=settings.web_mqtt_message_max)
    else:
        service = Service(
            settings.web_stomp_path,
            STOMP_SUBPROTOCOLS,
            takes_text=True,
            sends_text=settings.web_stomp_frame == "text",
            takes_login=settings.web_stomp_http_auth,
            needs_subprotocol=False,
            message_bytes_max=settings.web_stomp_message_max,
        )
    return lambda header=None: WebSocket(service, node.loop, lambda: kind(node, header), header)


def _may_serve(node: Node) -> bool:
    return not node.pausing.paused and node.maintenance.state is None


def tls_timeout_s(settings: Settings) -> float | None:
    return None if settings.ssl_handshake_timeout_ms is None else settings.ssl_handshake_timeout_ms / 1000


def tls_context(options: TlsOptions, port_for: str) -> ssl.SSLContext:
    context = default_context(options.cacertfile, ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(options.certfile, options.keyfile, options.password)
    versions = [TLS_VERSIONS[name] for name in options.versions]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    if options.verify_peer:
        context.verify_mode = ssl.CERT_REQUIRED if options.fail_if_no_peer_cert else ssl.CERT_OPTIONAL
    tell_failures(context, port_for)
    return context
