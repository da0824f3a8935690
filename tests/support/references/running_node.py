"""Metrics and routes as a running node has them: a broker inside this process, with one of everything."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple

import pika

import leveret.testing
from leveret.management.api.monitoring.prometheus import FAMILIES
from leveret.management.http.routes import Router
from leveret.node.cluster.membership import Cluster
from tests.support.servers import until

CONFIG: Final = """\
management_port = 0
prometheus.tcp.port = 0
mqtt.listeners.tcp.1 = 127.0.0.1:0
stomp.listeners.tcp.1 = 127.0.0.1:0
"""
SHOVEL: Final = {"src-uri": "amqp://", "src-queue": "here", "dest-uri": "amqp://127.0.0.1:1", "dest-queue": "there"}
_SAMPLE: Final = re.compile(r"([a-z_0-9]+?)(?:_bucket|_sum|_count)?(?:\{(.*)\})? \S+")
_LABEL: Final = re.compile(r'([a-z_]+)="')


class Route(NamedTuple):
    method: str
    path: str
    handler: Any


class Metric(NamedTuple):
    name: str
    type: str
    help: str
    labels: tuple[str, ...]
    endpoints: tuple[str, ...]


class Observed(NamedTuple):
    routes: list[Route]
    metrics: list[Metric]


def observe() -> Observed:
    routes: list[Route] = []
    usual = Router.add

    def add(router: Router, method: str, pattern: str, handler: Any, *rest: Any, **named: Any) -> None:
        routes.append(Route(method, pattern, handler))
        usual(router, method, pattern, handler, *rest, **named)

    with (
        _replaced(Router, "add", add),
        _replaced(Cluster, "attending", lambda cluster: [_Witness("witness@localhost", True)]),
        leveret.testing.broker(config=CONFIG) as broker,
    ):
        metrics = _metrics(broker)
    names: dict[str, str] = {}  # One path for paths that differ only in what they call their parts.
    found = {}
    for route in sorted(routes, key=lambda route: route.path, reverse=True):
        path = names.setdefault(re.sub(r"\{\w+\}", "{}", route.path), route.path)
        found[path, route.method] = route._replace(path=path)
    return Observed([found[key] for key in sorted(found)], metrics)


class _Witness(NamedTuple):
    """A member that no test of documents needs to start: only its name and its state are metrics."""

    name: str
    running: bool


@contextmanager
def _replaced(owner: type, name: str, value: Callable[..., Any]) -> Iterator[None]:
    usual = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, usual)


def _metrics(broker: leveret.testing.Broker) -> list[Metric]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("here", durable=True)
    channel.basic_publish("", "here", b"")
    channel.basic_consume("here", lambda *_: None)
    broker.admin.call("set_parameter", component="shovel", vhost="/", name="s", value=SHOVEL)
    upstream = {"uri": "amqp://127.0.0.1:1"}
    broker.admin.call("set_parameter", component="federation-upstream", vhost="/", name="u", value=upstream)
    broker.admin.set_policy("f", "^amq.topic$", {"federation-upstream": "u"}, apply_to="exchanges")
    until(lambda: bool(broker.admin.call("local_links")), "a federation link")
    read = partial(_read, broker.ports["prometheus"])
    until(lambda: "shovel_dynamic" in read("/metrics"), "the node runs the shovel")
    families = "&".join(f"family={name}" for name in sorted(FAMILIES))
    found: dict[str, Metric] = {}
    for endpoint, path in (
        ("/metrics", "/metrics"), ("per-object", "/metrics/per-object"), ("detailed", f"/metrics/detailed?{families}"),
    ):  # fmt: skip
        for metric in parsed(read(path), endpoint):
            known = found.get(metric.name, metric)
            labels = tuple(dict.fromkeys((*known.labels, *metric.labels)))
            endpoints = tuple(dict.fromkeys((*known.endpoints, endpoint)))
            found[metric.name] = metric._replace(labels=labels, endpoints=endpoints)
    connection.close()
    return sorted(found.values())


def _read(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
        text: str = answer.read().decode()
    return text


def parsed(text: str, endpoint: str) -> Iterator[Metric]:
    """Yields the metrics of an answer in Prometheus' text format."""
    kinds: dict[str, str] = {}
    helps: dict[str, str] = {}
    labels: dict[str, dict[str, None]] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            _, word, name, rest = line.split(" ", 3)
            (kinds if word == "TYPE" else helps)[name] = rest
        elif (sample := _SAMPLE.fullmatch(line)) is not None:
            name = sample[1] if sample[1] in kinds else line.partition("{")[0].partition(" ")[0]
            labels.setdefault(name, {}).update(dict.fromkeys(_LABEL.findall(sample[2] or "")))
    for name, kind in kinds.items():
        yield Metric(name, kind, helps.get(name, ""), tuple(labels.get(name, ())), (endpoint,))
