"""Every answer has what RabbitMQ's has: the same fields, of the same types, and the same status."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pika
import pytest

import leveret.testing
from tests.support.servers import until
from tests.system.management.recorder import RECORDED, ask, metric_names, paths
from tests.system.management.scene import METRICS, QUESTIONS, Scene
from tests.system.management.watching import CONFIG, Watched

# What is Erlang's, and has no meaning here. See docs/differences.md.
OF_ERLANG = frozenset(
    {
        "garbage_collection", "reductions", "reductions_details", "gc_num", "gc_num_details", "gc_bytes_reclaimed",
        "gc_bytes_reclaimed_details", "context_switches", "context_switches_details", "proc_used_details",
        "ra_open_file_metrics", "delta", "q1", "q2", "q3", "q4", "target_ram_count", "version", "socket_opts",
        "cowboy_opts", "protocol",
    }
)  # fmt: skip
# Counts of operations on files that our log does not do, or does not count one by one.
OF_FILES = ("io_", "msg_store_", "queue_index_", "mnesia_")
MEMORY = frozenset({"memory"})
OTHER_STATUS = {"absent_node": 404}  # RabbitMQ crashes over it.
METRICS_LEFT_OUT = (
    "erlang_", "process_", "telemetry_", "rabbitmq_erlang_", "rabbitmq_io_", "rabbitmq_msg_store_",
    "rabbitmq_auth_attempts_detailed_", "rabbitmq_queue_index_", "rabbitmq_schema_db_",
    "rabbitmq_raft_", "rabbitmq_detailed_queue_process_reductions",
)  # fmt: skip
NOT_MEASURED = frozenset(
    {
        "rabbitmq_channel_process_reductions_total", "rabbitmq_connection_process_reductions_total",
        "rabbitmq_queue_process_reductions_total",
    }
)  # fmt: skip
# All that RabbitMQ's Grafana dashboard 10991 shows; what is of channels, in revisions before 3.10.
DASHBOARD = (
    "identity_info", "build_info", "connections", "channels", "queues", "consumers", "channel_consumers",
    "connections_opened_total", "connections_closed_total", "channels_opened_total", "channels_closed_total",
    "queues_declared_total", "queues_created_total", "queues_deleted_total", "queue_messages_ready",
    "queue_messages_unacked", "process_resident_memory_bytes", "resident_memory_limit_bytes",
    "disk_space_available_bytes", "process_open_fds", "process_max_fds", "process_open_tcp_sockets",
    "process_max_tcp_sockets", "global_publishers", "global_consumers", "channel_messages_published_total",
    "channel_messages_confirmed_total", "channel_messages_unroutable_returned_total",
    "channel_messages_unroutable_dropped_total", "channel_messages_delivered_total",
    "channel_messages_delivered_ack_total", "channel_messages_redelivered_total", "channel_messages_acked_total",
    "channel_get_total", "channel_get_ack_total", "channel_get_empty_total",
    *(f"global_messages_{name}_total" for name in (
        "received", "received_confirm", "routed", "confirmed", "unroutable_dropped", "unroutable_returned",
        "delivered_consume_manual_ack", "delivered_consume_auto_ack", "delivered_get_manual_ack",
        "delivered_get_auto_ack", "get_empty", "redelivered", "acknowledged",
    )),
    # Since RabbitMQ 4.1.
    "message_size_bytes_bucket", "message_size_bytes_sum", "message_size_bytes_count",
)  # fmt: skip
# All that its dashboard 11340, about Raft, shows. The same is told of the metadata's Raft log here.
RAFT_DASHBOARD = (
    "identity_info", "raft_term_total", "raft_log_snapshot_index", "raft_log_last_applied_index",
    "raft_log_commit_index", "raft_log_last_written_index", "raft_entry_commit_latency_seconds",
)  # fmt: skip


MORE_REASON = ("bad_regex",)  # RabbitMQ does not say what is wrong with the pattern.


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    with leveret.testing.broker(config=CONFIG) as broker:
        watched = Watched(broker)
        watched.get("/api/overview")
        with Scene(broker.port) as scene:
            watched.sample()
            scene.play(10)
            watched.sample()
            scene.play(10)
            watched.sample()
            yield watched


@pytest.fixture(scope="module")
def questions(watched: Watched) -> dict[str, str]:
    return paths(watched.broker.ports["management"])


@pytest.mark.parametrize("name", QUESTIONS)
def test_answer(watched: Watched, questions: dict[str, str], name: str) -> None:
    recorded = json.loads((RECORDED / f"{name}.json").read_text())
    assert recorded["path"] == QUESTIONS[name], "record anew"
    status, headers, body = ask(watched.broker.ports["management"], questions[name])
    assert status == OTHER_STATUS.get(name, recorded["status"])
    assert headers["content-type"] == "application/json"
    ours = json.loads(body)
    if status == 200:
        assert list(lacking(recorded["body"], ours, name)) == []
    elif name in MORE_REASON:
        reason = recorded["body"].pop("reason")
        assert ours.pop("reason").startswith(f"{reason}: ")
        assert ours == recorded["body"]
    elif name not in OTHER_STATUS:
        assert ours == recorded["body"]


def lacking(theirs: Any, ours: Any, path: str) -> Iterator[str]:
    """What is in RabbitMQ's answer and not in ours, or of another type."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for name, value in theirs.items():
            if name in OF_ERLANG or name.startswith(OF_FILES) or (name in MEMORY and path.startswith("node")):
                continue
            if name not in ours and value != []:  # RabbitMQ's way to write an empty object.
                yield f"{path}.{name} is missing"
            elif name in ours:
                yield from lacking(value, ours[name], f"{path}.{name}")
    elif isinstance(theirs, list) and isinstance(ours, list):
        for one, other in _pairs(theirs, ours):
            yield from lacking(one, other, f"{path}[]")
        if theirs and not ours:
            yield f"{path} is empty"
    elif theirs is not None and ours is not None and kind(theirs) != kind(ours):
        yield f"{path} is {ours!r} and not like {theirs!r}"


def _pairs(theirs: list[Any], ours: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Rows of one name; else the first ones."""
    named = {row["name"]: row for row in ours if isinstance(row, dict) and isinstance(row.get("name"), str)}
    for row in theirs:
        if isinstance(row, dict) and row.get("name") in named:
            yield row, named[row["name"]]
    if theirs and ours:
        yield theirs[0], ours[0]


def kind(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "number"
    return type(value).__name__


@pytest.mark.parametrize("name", METRICS)
def test_metrics(watched: Watched, name: str) -> None:
    recorded = json.loads((RECORDED / f"{name}.json").read_text())
    text = watched.metrics(METRICS[name])
    ours = metric_names(text)
    wanted = {
        metric: kind_
        for metric, kind_ in recorded["metrics"].items()
        if not metric.startswith(METRICS_LEFT_OUT) and metric not in NOT_MEASURED
    }
    assert {metric: ours.get(metric) for metric in wanted} == wanted
    assert all(line.startswith("#") or len(line.rsplit(" ", 1)) == 2 for line in text.splitlines())
    assert len(ours) == text.count("# TYPE ")  # None comes twice.


def test_dashboard(watched: Watched) -> None:
    text = watched.metrics()
    lines = text.splitlines()
    for name in (*DASHBOARD, *RAFT_DASHBOARD):
        assert any(line.startswith((f"rabbitmq_{name} ", f"rabbitmq_{name}{{")) for line in lines), name
    # Everything is multiplied with the identity of its node, of which there must be one, and which has these labels.
    [identity] = [line for line in lines if line.startswith("rabbitmq_identity_info{")]
    [build] = [line for line in lines if line.startswith("rabbitmq_build_info{")]
    for label in ("rabbitmq_node", "rabbitmq_cluster", "rabbitmq_endpoint"):
        assert f'{label}="' in identity
    for label in ("rabbitmq_version", "erlang_version", "prometheus_client_version", "prometheus_plugin_version"):
        assert f'{label}="' in build
    assert identity.endswith(" 1") and build.endswith(" 1")
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert values['rabbitmq_global_messages_received_total{protocol="amqp091"}'] == "122"
    assert values['rabbitmq_message_size_bytes_count{protocol="amqp091"}'] == "122"
    assert values['rabbitmq_message_size_bytes_bucket{protocol="amqp091",le="+Inf"}'] == "122"
    assert values['rabbitmq_global_messages_unroutable_returned_total{protocol="amqp091"}'] == "20"
    got = 'rabbitmq_global_messages_delivered_get_auto_ack_total{protocol="amqp091",queue_type="rabbit_classic_queue"}'
    assert values[got] == "2"
    assert values["rabbitmq_queue_messages_ready"] == "20"


def test_counts_and_rates(watched: Watched) -> None:
    """What the scene did: twenty rounds, ten of them in the last interval but one, and ten in the last."""
    stats = watched.get("/api/overview")["message_stats"]
    counts = {name: value for name, value in stats.items() if not name.endswith("_details")}
    assert counts["publish"] == counts["confirm"] == 122
    assert counts["return_unroutable"] == counts["drop_unroutable"] == counts["get_empty"] == 20
    assert (counts["get"], counts["get_no_ack"], counts["deliver_no_ack"]) == (20, 2, 20)
    assert counts["deliver_get"] == counts["deliver"] + 42
    assert stats["publish_details"] == {"rate": 61 / 5}
    queue = watched.get("/api/queues/%2F/scene.plain?lengths_age=60&lengths_incr=5&msg_rates_age=10&msg_rates_incr=5")
    assert (queue["messages"], queue["messages_ready"], queue["message_bytes"], queue["messages_persistent"]) == (
        20, 20, 100, 20,
    )  # fmt: skip
    assert queue["head_message_timestamp"] == 1_600_000_000
    details = queue["message_stats"]["publish_details"]
    assert [one["sample"] for one in details["samples"]] == [20, 10, 0]
    assert (details["rate"], details["avg"], details["avg_rate"]) == (2.0, 10.0, 2.0)
    assert [one["sample"] for one in queue["messages_ready_details"]["samples"]] == [20, 10, *[0] * 11]
    exchange = watched.get("/api/exchanges/%2F/scene.topic")
    assert exchange["message_stats"]["publish_in"] == 60
    assert exchange["message_stats"]["publish_out"] == 20
    [channel] = watched.get("/api/channels")
    assert channel["message_stats"]["publish"] == 122
    assert channel["message_stats"]["deliver"] == stats["deliver"]
    assert channel["message_stats"]["ack"] == stats["ack"]
    assert channel["message_stats"]["redeliver"] == stats["redeliver"] > 0


def test_bytes_of_a_vhost(watched: Watched) -> None:
    [connection] = watched.get("/api/connections")
    watched.sample()
    for vhost in (watched.get("/api/vhosts/%2F"), watched.get("/api/vhosts")[0]):
        for name in ("recv_oct", "send_oct"):
            assert vhost[name] >= connection[name] > 0
            assert vhost[f"{name}_details"]["rate"] >= 0


def test_a_channel_that_does_nothing(watched: Watched) -> None:
    watched.sample()
    watched.sample()
    [channel] = watched.get("/api/channels")
    assert channel["idle_since"].endswith("+00:00")


def test_types_of_queues(watched: Watched) -> None:
    with pika.BlockingConnection(pika.URLParameters(watched.broker.url)) as connection:
        for name in ("quorum", "stream"):
            connection.channel().queue_declare(name, durable=True, arguments={"x-queue-type": name})
    watched.broker.admin.set_policy("some", "^quorum$", {"message-ttl": 60_000})
    quorum, stream = (watched.get(f"/api/queues/%2F/{name}") for name in ("quorum", "stream"))
    assert (quorum["messages_dlx"], quorum["message_bytes_dlx"]) == (0, 0)
    assert stream["readers"] == {stream["node"]: 0}
    bare = {row["name"]: row for row in watched.get("/api/queues?disable_stats=true")}
    for name in ("leader", "members", "online"):
        assert bare["quorum"][name] == quorum[name]
        assert name not in bare["scene.plain"]
    assert [name for name, row in bare.items() if row.get("policy") == "some"] == ["quorum"]


def test_dead_letters_by_type_and_strategy(watched: Watched) -> None:
    kept = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
    queues = {"classic": {}, "most": {"x-queue-type": "quorum"}, "least": {"x-queue-type": "quorum", **kept}}
    with pika.BlockingConnection(pika.URLParameters(watched.broker.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("dead")
        for count, (name, arguments) in enumerate(queues.items(), 1):
            to_dead: Any = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", **arguments}
            channel.queue_declare(f"from.{name}", durable=True, arguments=to_dead)
            for _ in range(count):
                channel.basic_publish("", f"from.{name}", b"")
                found, _, _ = channel.basic_get(f"from.{name}")
                assert found is not None
                channel.basic_reject(found.delivery_tag, requeue=False)
    word = "rabbitmq_global_messages_dead_lettered"
    safe = f'{word}_confirmed_total{{queue_type="rabbit_quorum_queue",dead_letter_strategy="at_least_once"}} 3\n'
    until(lambda: safe in watched.metrics(), "the letters are safe")
    values = dict(line.rsplit(" ", 1) for line in watched.metrics().splitlines() if "dead_lettered" in line)
    shown = {name: value for name, value in values.items() if value != "0" and not name.startswith("#")}
    assert shown == {
        f'{word}_rejected_total{{queue_type="rabbit_classic_queue",dead_letter_strategy="at_most_once"}}': "1",
        f'{word}_rejected_total{{queue_type="rabbit_quorum_queue",dead_letter_strategy="at_most_once"}}': "2",
        f'{word}_rejected_total{{queue_type="rabbit_quorum_queue",dead_letter_strategy="at_least_once"}}': "3",
        f'{word}_confirmed_total{{queue_type="rabbit_quorum_queue",dead_letter_strategy="at_least_once"}}': "3",
    }
