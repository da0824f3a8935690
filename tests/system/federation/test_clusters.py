"""Links in a cluster: one node runs each, another takes over, and there may be many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pika
import pytest

import leveret.testing
from leveret.testing import Broker, Cluster
from tests.support.servers import until
from tests.system.federation.conftest import Site

COUNT = 600


@pytest.fixture
def three() -> Iterator[Cluster]:
    with leveret.testing.cluster(3) as cluster:
        cluster.brokers[0].admin.call("set_cluster_name", name="three")
        yield cluster


def rows(cluster: Cluster) -> list[dict[str, Any]]:
    first = next(broker for broker in cluster.brokers if broker.is_running)
    found: list[dict[str, Any]] = first.admin.call("federation_status")
    return found


def runner_of(cluster: Cluster) -> Broker:
    """The node that runs the only link, once one does."""
    until(lambda: [one["status"] for one in rows(cluster)] == ["running"], "the link to run")
    return next(broker for broker in cluster.brokers if broker.name == rows(cluster)[0]["node"])


def workers(cluster: Cluster) -> int:
    return sum(len(one.admin.call("local_links")) for one in cluster.brokers if one.is_running)


def set_up(broker: Broker, up: Site, pattern: str, apply_to: str) -> None:
    value = {"uri": up.url, "reconnect-delay": 0.1, "prefetch-count": 50}
    broker.admin.call("set_parameter", vhost="/", component="federation-upstream", name="u", value=value)
    broker.admin.set_policy("federate", pattern, {"federation-upstream": "u"}, apply_to=apply_to, priority=9)


def test_another_node_takes_over_an_exchange_and_nothing_is_lost_or_doubled(three: Cluster, up: Site) -> None:
    home = three.brokers[0]
    home.admin.set_policy("mirror", "^q$", {"ha-mode": "all", "ha-sync-mode": "automatic"}, apply_to="queues")
    site = Site(home)
    site.queue("q", site.exchange("x"), "#")
    site.close()
    set_up(home, up, "^x$", "exchanges")
    runner = runner_of(three)
    assert workers(three) == 1
    for number in range(COUNT):
        up.publish("x", "k", b"%d" % number)
        if number == COUNT // 2:
            runner.kill()
    assert runner_of(three) is not runner
    assert workers(three) == 1
    site = Site(next(broker for broker in three.brokers if broker.is_running))
    found: list[bytes] = []

    def has_all() -> bool:
        found.extend(body for body, _ in site.take("q"))
        return len(set(found)) == COUNT

    until(has_all, "all messages")
    found.extend(body for body, _ in site.take("q"))
    assert Counter(found) == Counter(b"%d" % number for number in range(COUNT))
    site.close()


def test_the_link_of_a_queue_follows_the_queue(three: Cluster, up: Site) -> None:
    first, second = three.brokers[0], three.brokers[1]
    site = Site(first)
    site.queue("q")
    up.queue("q")
    set_up(first, up, "^q$", "queues")
    assert runner_of(three) is first
    for number in range(20):
        up.publish("", "q", b"%d" % number)
    with pika.BlockingConnection(pika.URLParameters(second.url)) as connection:  # The consumer is at another node.
        channel = connection.channel()
        got: list[bytes] = []
        channel.basic_consume("q", lambda _c, _m, _p, body: got.append(body), auto_ack=True)

        def has_all() -> bool:
            connection.process_data_events(0.05)
            return len(got) == 20

        until(has_all, "all to come")
    site.close()


def test_a_deleted_vhost_ends_its_links(three: Cluster, up: Site) -> None:
    admin = three.brokers[0].admin
    admin.add_vhost("v")
    value = {"uri": up.url, "reconnect-delay": 0.1}
    admin.call("set_parameter", vhost="v", component="federation-upstream", name="u", value=value)
    admin.set_policy("federate", "^amq.topic$", {"federation-upstream": "u"}, vhost="v", apply_to="exchanges")
    runner_of(three)
    admin.delete_vhost("v")
    until(lambda: rows(three) == [] and workers(three) == 0, "the link to end")
    until(lambda: not any(name.startswith("federation") for name in up.queues()), "the upstream to be cleaned")


def test_many_exchanges(down: Site, up: Site) -> None:
    down.upstream("u", up.url)
    for number in range(300):
        down.channel.exchange_declare(f"x{number}", "fanout", durable=True)
    down.queue("q", "x299")
    down.federate("^x")
    down.until_runs(300)
    up.publish("x299", "k")
    until(lambda: down.count("q") == 1, "a message")
    down.broker.admin.clear_policy("federate")
    until(lambda: down.links() == [], "all to end")
    until(lambda: not any(name.startswith("federation") for name in up.queues()), "the upstream to be cleaned")
