"""Metrics in Prometheus' text format: `/metrics`, `/metrics/per-object`, `/metrics/detailed?family=…&vhost=…`.

A node tells of itself; Prometheus asks all of them. The format wants all values of a metric together, so things are
gone through once for each metric, and what is made is sent before more is made: a node with a hundred thousand queues
needs some seconds for a whole answer, in slices, and no memory for it. Sums take one pass for all metrics.

On the port of its own there are no credentials, as in RabbitMQ: the figures say nothing about contents. On the
management port it takes a user who may monitor.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from leveret import __version__
from leveret.broker.queue.local_queue import LocalQueue
from leveret.management.api.common.base import Handlers
from leveret.management.api.monitoring import metrics as m
from leveret.management.http.http_messages import Buffer, Problem, Request, Response, bad_request
from leveret.management.http.routes import Router
from leveret.metadata.model.hidden_queues import is_hidden_queue
from leveret.metadata.rules.global_parameters import CLUSTER_ID
from leveret.node.admin.statistics.peer_stats import mirror_figures
from leveret.node.system.time_slices import TimeSlices
from leveret.sessions.mqtt.connection import Connection as MqttConnection
from leveret.sessions.peer import COMPATIBLE_VERSION
from leveret.sessions.stomp.connection import Connection as StompConnection

if TYPE_CHECKING:
    from leveret.management.app import Management
    from leveret.sessions.amqp.channel import Channel

TYPE: Final = "text/plain; version=0.0.4"
PREFIX: Final = "rabbitmq_"
DETAILED: Final = "rabbitmq_detailed_"
CLUSTER: Final = "rabbitmq_cluster_"
ANSWERS_MAX: Final = 4
LINES_AT_ONCE: Final = 256
OF_VHOSTS: Final = ("vhost_status", "exchange_names", "exchange_bindings")
FAMILIES: Final = frozenset(
    {
        "queue_coarse_metrics", "queue_consumer_count", "queue_metrics", "channel_metrics", "channel_exchange_metrics",
        "channel_queue_metrics", "channel_queue_exchange_metrics", "channel_process_metrics", "connection_metrics",
        "connection_coarse_metrics", "connection_churn_metrics", "node_metrics", "node_coarse_metrics",
        "node_persister_metrics", "ra_metrics", "auth_attempt_metrics", "mirror_metrics", "balance_metrics",
        "partition_metrics", "spool_metrics", "maintenance_metrics",
        "lease_metrics", *OF_VHOSTS,
    }
)  # fmt: skip

Things = list[tuple[str, Any]]  # With their labels.


class MetricHandlers(Handlers):
    def __init__(self, management: Management) -> None:
        super().__init__(management)
        self.control = management.server.control
        self.answers = asyncio.Semaphore(ANSWERS_MAX)

    def add_to(self, router: Router) -> None:
        router.add("GET", "/metrics", self.monitored(self.whole))
        router.add("GET", "/metrics/per-object", self.monitored(self.per_object))
        router.add("GET", "/metrics/detailed", self.monitored(self.detailed))

    def monitored(self, handler: Callable[[Request], Any]) -> Callable[[Request], Any]:
        async def checked(request: Request) -> Response:
            self.rights.check_monitor(request)
            response: Response = await handler(request)
            return response

        return checked

    async def whole(self, request: Request) -> Response:
        is_single = self.management.server.settings.prometheus_per_object
        return self._answer(self._single() if is_single else self._summed())

    async def per_object(self, request: Request) -> Response:
        return self._answer(self._single())

    async def detailed(self, request: Request) -> Response:
        families = {value for name, value in request.query if name == "family"}
        vhosts = {value for name, value in request.query if name == "vhost"} or None
        unknown = families - FAMILIES
        if unknown:
            raise bad_request(f"there is no family {min(unknown)}; there are {', '.join(sorted(FAMILIES))}")
        return self._answer(self._families(families, vhosts))

    def _answer(self, lines: AsyncIterator[str]) -> Response:
        self.node.samples.start()
        return Response(200, self._sent(lines), TYPE)

    async def _sent(self, lines: AsyncIterator[str]) -> AsyncIterator[Buffer]:
        """Some at a time, and after each time whoever else wants the loop."""
        gathered: list[str] = []
        async with self.answers:
            async for line in lines:
                gathered.append(line)
                if len(gathered) >= LINES_AT_ONCE:
                    yield "".join(gathered).encode("utf-8", "replace")
                    gathered = []
                    await asyncio.sleep(0)
            yield "".join(gathered).encode("utf-8", "replace")

    # -- What there is -------------------------------------------------------------------------------------------

    async def _queues(self, vhosts: set[str] | None = None) -> Things:
        slices, found = TimeSlices(), []
        for queue in list(self.node.broker.queues_by_id.values()):
            spec = queue.spec
            if (
                isinstance(queue, LocalQueue)
                and not is_hidden_queue(spec.name)
                and (vhosts is None or spec.vhost in vhosts)
            ):
                found.append((f'vhost="{_escaped(spec.vhost)}",queue="{_escaped(spec.name)}"', queue))
            if slices.is_over():
                await slices.rest()
        return found

    async def _clients(self) -> tuple[Things, Things]:
        """Connections and channels."""
        connections: Things = []
        channels: Things = []
        async for connection in TimeSlices(steps=1).each(list(self.node.broker.connections)):
            connections.append((f'connection="{connection.peer}"', connection))
            for channel in connection.channels.values():
                channels.append((f'channel="{channel.who}"', channel))
        return connections, channels

    def _node_figures(self) -> list[m.Figure]:
        return m.node_figures(self.control, self.management.gate.counts, self.management.server.watch.turns)

    # -- Answers -------------------------------------------------------------------------------------------------

    async def _summed(self) -> AsyncIterator[str]:
        figures = self._node_figures()
        for line in self._figures(PREFIX, figures):
            yield line
        connections, channels = await self._clients()
        counted = m.channel_totals(self.control)
        names = {figure.name for figure in counted}
        for line in self._figures(PREFIX, counted):
            yield line
        for table, things in (
            (m.QUEUES, await self._queues()),
            (m.OF_CHANNELS, channels),
            (m.CONNECTIONS, connections),
        ):
            wanted = [metric for metric in table if metric.name not in names]
            for line in await self._sums(wanted, things):
                yield line
        for line in await self._counts(channels, "aggregated"):
            yield line

    async def _sums(self, table: Iterable[m.Metric], things: Things) -> list[str]:
        slices = TimeSlices()
        wanted = list(table)
        sums: list[float] = [0] * len(wanted)
        unused = 0
        for _, thing in things:
            if isinstance(thing, LocalQueue) and m.is_unused(thing):
                unused += 1  # Most are, where there are very many.
                if slices.is_over():
                    await slices.rest()
                continue
            for at, metric in enumerate(wanted):
                value = metric.value(self.control, thing)
                if value:
                    largest = metric.name.startswith("queue_mirror_lag")
                    sums[at] = max(sums[at], value) if largest else sums[at] + value
            if slices.is_over():
                await slices.rest()
        for at, metric in enumerate(wanted):
            if metric.name == "queue_process_memory_bytes":
                sums[at] += unused * m.QUEUE_BYTES
        found = [
            m.Figure(*metric[:4], [] if metric.name in m.OF_ONE_ONLY else [m.Sample("", sum_)])
            for metric, sum_ in zip(wanted, sums, strict=True)
        ]
        return list(self._figures(PREFIX, found))

    async def _single(self) -> AsyncIterator[str]:
        figures = self._node_figures()
        for line in self._figures(PREFIX, figures):
            yield line
        connections, channels = await self._clients()
        for table, things in (
            (m.QUEUES, await self._queues()),
            (m.OF_CHANNELS, channels),
            (m.CONNECTIONS, connections),
        ):
            async for line in self._each(PREFIX, table, things):
                yield line
        for line in await self._counts(channels, "per-object"):
            yield line

    async def _families(self, families: set[str], vhosts: set[str] | None) -> AsyncIterator[str]:
        node = [one for one in self._node_figures() if one.family in families]
        for line in self._figures(DETAILED, node):
            yield line
        if "mirror_metrics" in families:
            for line in self._figures(DETAILED, m.mirror_figures(await mirror_figures(self.control))):
                yield line
        connections, channels = await self._clients()
        for table, things in ((m.OF_CHANNELS, channels), (m.CONNECTIONS, connections)):
            async for line in self._each(DETAILED, [one for one in table if one.family in families], things):
                yield line
        of_queues = [metric for metric in m.QUEUES if metric.family in families]
        if of_queues:
            async for line in self._each(DETAILED, of_queues, await self._queues(vhosts)):
                yield line
        async for line in self._of_vhosts(families, vhosts):
            yield line
        for line in self._figures(PREFIX, self._identity("detailed")):
            yield line

    async def _each(self, prefix: str, table: Iterable[m.Metric], things: Things) -> AsyncIterator[str]:
        slices = TimeSlices()
        for metric in table if things else ():
            name = prefix + metric.name
            yield _head(name, metric.type, metric.help)
            for labels, thing in things:
                value = metric.value(self.control, thing)
                if value is not None:
                    yield f"{name}{{{labels}}} {value}\n"
                if slices.is_over():
                    await slices.rest()

    async def _counts(self, channels: Things, endpoint: str) -> list[str]:
        """Return counts of objects, and the node's identity."""
        broker = self.node.broker
        slices, consumers, publishers = TimeSlices(), 0, 0
        for _, channel in channels:
            one: Channel = channel
            consumers += len(one.consumers)
            publishers += bool(one.session.traffic.published)
            if slices.is_over():
                await slices.rest()
        home = sum(self.node.metadata.queue_counts.values())
        led = len(await self._queues()) if len(self.node.cluster.members()) > 1 else home
        both = (
            ("connections", "Connections currently open", len(broker.connections)),
            ("channels", "Channels currently open", len(channels)),
            ("consumers", "Consumers currently connected", consumers),
            ("queues", "Queues available", led),
        )
        found = [m.Figure(name, m.GAUGE, text, "", [m.Sample("", value)]) for name, text, value in both]
        others = await self._other_clients()
        for name, text, value, at in (
            ("global_publishers", "Publishers currently connected", publishers, 0),
            ("global_consumers", "Consumers currently connected", consumers, 1),
        ):
            samples = [m.Sample(labels, counts[at]) for labels, counts in others.items()]
            found.append(m.Figure(name, m.GAUGE, text, "", [m.Sample(m.PROTOCOL, value), *samples]))
        found += m.mirror_figures(await mirror_figures(self.control))
        return list(self._figures(PREFIX, [*found, *self._identity(endpoint)]))

    async def _other_clients(self) -> dict[str, list[int]]:
        """Return by protocol how many clients of MQTT and STOMP have published, and how many consumers they are. A
        client of MQTT is one consumer, whatever its subscriptions, as with RabbitMQ."""
        settings = self.node.settings
        protocols = (
            *(m.MQTT_PROTOCOLS.values() if settings.has_mqtt else ()),
            *(m.STOMP_PROTOCOLS.values() if settings.has_stomp else ()),
        )
        found = {labels: [0, 0] for labels in protocols}
        slices = TimeSlices()
        for one in list(self.node.broker.connections) if found else ():
            if isinstance(one, MqttConnection):
                _count(found[m.MQTT_PROTOCOLS[one.version]], one.has_published, bool(one.subscriptions.options))
            elif isinstance(one, StompConnection):
                _count(found[m.STOMP_PROTOCOLS[one.version]], one.has_published, len(one.subscriptions.of_tag))
            if slices.is_over():
                await slices.rest()
        return found

    def _identity(self, endpoint: str) -> list[m.Figure]:
        """Return the series that dashboards join all others with. Newer dashboards tell answers apart by `endpoint`."""
        python = platform.python_version()
        build = (
            f'rabbitmq_version="{COMPATIBLE_VERSION}",prometheus_plugin_version="{COMPATIBLE_VERSION}",'
            f'prometheus_client_version="{__version__}",erlang_version="Python {python}",'
            f'product_name="Leveret",product_version="{__version__}"'
        )
        cluster = _escaped(self.node.broker.cluster_name)
        number = _escaped(str(self.metadata.global_parameters.get(CLUSTER_ID, "")))
        node = _escaped(self.control.name)
        identity = (
            f'rabbitmq_node="{node}",rabbitmq_cluster="{cluster}",rabbitmq_cluster_permanent_id="{number}",'
            f'rabbitmq_endpoint="{endpoint}"'
        )
        return [
            m.Figure("build_info", m.UNTYPED, "Leveret & Python version info", "", [m.Sample(build, 1)]),
            m.Figure("identity_info", m.UNTYPED, "Node & cluster identity info", "", [m.Sample(identity, 1)]),
        ]

    async def _of_vhosts(self, families: set[str], vhosts: set[str] | None) -> AsyncIterator[str]:
        slices, metadata = TimeSlices(), self.metadata
        there = dict.fromkeys(name for name in metadata.vhosts if vhosts is None or name in vhosts)
        if "vhost_status" in families:
            yield _head(f"{CLUSTER}vhost_status", m.GAUGE, "Whether a given vhost is running")
            for vhost in there:
                yield f'{CLUSTER}vhost_status{{vhost="{_escaped(vhost)}"}} 1\n'
        for family, name, text in (
            ("exchange_names", "exchange_name", "Enumerates exchanges without any additional info"),
            ("exchange_bindings", "exchange_bindings", "Number of bindings for an exchange"),
        ):
            if family not in families:
                continue
            yield _head(CLUSTER + name, m.GAUGE, text)
            for spec in list(metadata.exchanges.values()):
                if spec.vhost in there:
                    value = 1
                    if family == "exchange_bindings":
                        value = metadata.bindings.count_from(spec.vhost, spec.name)
                    labels = f'vhost="{_escaped(spec.vhost)}",exchange="{_escaped(spec.name)}",type="{spec.type}"'
                    yield f"{CLUSTER}{name}{{{labels}}} {value}\n"
                if slices.is_over():
                    await slices.rest()

    def _figures(self, prefix: str, figures: Iterable[m.Figure]) -> Iterable[str]:
        for figure in figures:
            name = prefix + figure.name
            yield _head(name, figure.type, figure.help)
            for labels, value, suffix in figure.samples:
                yield f"{name}{suffix}{{{labels}}} {value}\n" if labels else f"{name}{suffix} {value}\n"


def _head(name: str, kind: str, text: str) -> str:
    return f"# TYPE {name} {kind}\n# HELP {name} {text}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Exporter:
    """Serves metrics at the Prometheus port, without a login."""

    def __init__(self, handlers: MetricHandlers) -> None:
        self.router = Router()
        self.router.add("GET", "/metrics", handlers.whole)
        self.router.add("GET", "/metrics/per-object", handlers.per_object)
        self.router.add("GET", "/metrics/detailed", handlers.detailed)

    def admit(self, request: Request) -> Response | None:
        if request.method not in ("GET", "HEAD"):
            return Problem(405, "Method Not Allowed", "Method Not Allowed").response()
        request.body_bytes_max = 0
        return None

    async def handle(self, request: Request) -> Response:
        handler, request.parameters = self.router.find(request.method, request.path)
        return await handler(request)


def _count(counts: list[int], has_published: bool, consumers: int) -> None:
    counts[0] += has_published
    counts[1] += consumers
