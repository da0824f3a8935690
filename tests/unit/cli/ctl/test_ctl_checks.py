"""Health checks: sentences and exit codes of rabbitmq-diagnostics 3.10.8, with our names."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from leveret.protocol.tables import Field
from tests.support.control_world import FakeServer, cluster
from tests.unit.cli.ctl import ctl_node
from tests.unit.cli.ctl.ctl_node import Ctl, Ended, Wire

ctl, server, wire = ctl_node.ctl, ctl_node.server, ctl_node.wire
ASKING = "Asking node one@host "


def told(ended: Ended) -> Any:
    return json.loads(ended.out)


def short_of_memory(server: FakeServer) -> None:
    assert server.node is not None
    server.node.alarms.memory_limit_bytes = 1
    server.node.alarms.check()


def test_alarms(ctl: Ctl, server: FakeServer) -> None:
    none = "Node one@host reported no alarms, local or clusterwide\n"
    assert ctl("alarms") == Ended(0, f"{ASKING}to report any known resource alarms ...\n{none}", "")
    assert told(ctl("alarms", "--formatter", "json")) == {"alarms": [], "node": "one@host", "result": "ok"}
    assert ctl("check_alarms") == Ended(0, f"{ASKING}to report any local resource alarms ...\n{none}", "")
    short_of_memory(server)
    assert server.node is not None
    server.node.alarms.others["two@host"] = frozenset({"disk"})
    lines = "Memory alarm on node one@host\nFree disk space alarm on node two@host\n"
    assert ctl("alarms", "-q") == Ended(0, lines, "")
    assert ctl("check_alarms", "-q") == Ended(69, "", lines)
    assert told(ctl("alarms", "--formatter", "json")) == {
        "local": ["Memory alarm on node one@host"],
        "global": ["Free disk space alarm on node two@host"],
        "message": "Node one@host reported alarms",
        "result": "ok",
    }
    ended = ctl("check_alarms", "--formatter", "json")
    assert (ended.code, told(ended)["result"], ended.err) == (69, "error", "")


def test_running_or_booting(ctl: Ctl, server: FakeServer) -> None:
    text = "Leveret on node one@host is fully booted and running"
    assert ctl("is_running") == Ended(0, f"{ASKING}for its status ...\n{text}\n", "")
    assert told(ctl("is_running", "--formatter", "json")) == {"result": True, "message": text}
    assert "fully booted (check with is_running), stopped" in ctl("is_booting").out
    server.prepared = False
    server.starting = object()
    assert "not running or has not fully booted yet" in ctl("is_running", "-q").out
    assert ctl("is_booting", "-q").out == "Leveret on node one@host is booting\n"
    assert ctl("node_health_check").code == 70


def test_health_of_old(ctl: Ctl, server: FakeServer) -> None:
    assert ctl("node_health_check").out.endswith("Checking health of node one@host ...\nHealth check passed\n")
    short_of_memory(server)
    assert ctl("node_health_check", "-q").err == "Error:\nHealth check failed: Memory alarm on node one@host\n"


def test_vhosts(ctl: Ctl) -> None:
    assert ctl("check_virtual_hosts", "-q") == Ended(0, "Node one@host reported all vhosts as running\n", "")
    assert told(ctl("check_virtual_hosts", "--formatter", "json")) == {"result": "ok"}
    banner = "Trying to restart vhost '{}' on node 'one@host' ...\n"
    already = "Vhost '/' is already running on node 'one@host'\n"
    assert ctl("restart_vhost") == Ended(0, banner.format("/") + already, "")
    assert ctl("restart_vhost", "-p", "x").code == 70


def test_listeners(ctl: Ctl, server: FakeServer) -> None:
    lines = ctl("listeners", "-q").out.splitlines()
    assert lines[1] == "Interface: 127.0.0.1, port: 5672, protocol: amqp, purpose: AMQP 0-9-1"
    assert told(ctl("listeners", "--formatter", "json"))["listeners"][0]["protocol"] == "clustering"
    found = "A listener for port 5672 is running on node one@host.\n"
    assert ctl("check_port_listener", "5672", "-q") == Ended(0, found, "")
    missing = "No listener for port 1 is active on node one@host. Found listeners that use the following ports: 5672, "
    assert ctl("check_port_listener", "1", "-q") == Ended(69, "", f"{missing}25672\n")
    assert told(ctl("check_port_listener", "1", "--formatter", "json"))["ports"] == [25672, 5672]
    assert ctl("check_port_listener", "x").code == 65
    assert ctl("check_protocol_listener", "AMQP091").code == 0
    ended = ctl("check_protocol_listener", "mqtt", "-q")
    assert ended.err == (
        "Error:\nNo listener for protocol mqtt is active on node one@host. Found listeners for the following "
        "protocols: amqp, clustering\n"
    )
    assert ended.code == 69
    server.listeners.close()
    assert ctl("check_protocol_listener", "amqp").code == 69


def test_port_connectivity(ctl: Ctl, server: FakeServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        server.ports = {"cluster": one.getsockname()[1], "amqp": two.getsockname()[1]}
        ended = ctl("check_port_connectivity", "-q")
        ports = ", ".join(map(str, sorted(server.ports.values())))
        assert ended == Ended(0, f"Successfully connected to ports {ports} on node one@host.\n", "")
        two.close()
        ended = ctl("check_port_connectivity", "-q")
    assert ended.code == 69
    failed = f"Connection attempts failed to the following ports on node one@host: {server.ports['amqp']}"
    assert ended.err == f"Error:\n{failed}\n"


# -- Certificates --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificate")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days",
         "40", "-subj", "/CN=localhost", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    return folder / "cert.pem"


def test_certificates(ctl: Ctl, server: FakeServer, certificate: Path) -> None:
    import dataclasses

    from leveret.node.config.settings import TlsOptions

    assert ctl("check_certificate_expiration", "-q").out == "No certificates are expiring within 4 weeks.\n"
    tls = TlsOptions(certfile=str(certificate), keyfile=str(certificate.with_name("key.pem")))
    server.settings = dataclasses.replace(server.settings, tls=tls)
    assert ctl("check_certificate_expiration").code == 0
    ended = ctl("check_certificate_expiration", "--within", "2", "--unit", "months", "-q")
    assert ended.code == 69
    assert f"amqps certificate: {certificate}, valid until 2" in ended.err
    assert str(certificate) in ctl("certificates").out
    assert ctl("check_certificate_expiration", "--unit", "foos").err.startswith(
        "Error (argument validation): unit 'foos' is not supported. Please use one of: days, weeks, months, years\n"
    )
    broken = TlsOptions(certfile="/nowhere.pem", keyfile="/nowhere.pem")
    server.settings = dataclasses.replace(server.settings, tls=broken)
    assert "cannot be read" in ctl("check_certificate_expiration").err


# -- Majorities ----------------------------------------------------------------------------------------------------


def test_a_single_node(ctl: Ctl) -> None:
    text = "seems to be the only one in a single node cluster, the {} does not apply\n"
    assert ctl("check_if_node_is_quorum_critical", "-q").out == f"Node one@host {text.format('check')}"
    assert ctl("await_online_quorum_plus_one").out == (
        "Will wait for a quorum + 1 of nodes to be online for all quorum queues for 120 seconds...\n"
        f"Target node {text.format('command')}"
    )


def test_a_cluster_at_its_minimum(wire: Wire, ctl: Ctl) -> None:
    one, two, three = cluster("one@host", "two@host", "three@host")
    wire.server = one
    client = one.world.client()
    client.declare("copies", durable=True, arguments={"x-queue-type": Field("S", "classic")})
    assert ctl("check_if_node_is_quorum_critical", "-q").code == 0
    assert ctl("await_online_quorum_plus_one") == Ended(0, ctl("await_online_quorum_plus_one").out, "")
    three.node = None
    ended = ctl("check_if_node_is_quorum_critical", "-q")
    lost = "the cluster would lose its majority if node one@host is stopped: 1 of 3 nodes would run, and changes need 2"
    assert ended == Ended(69, "", f"{lost}\n")
    ended = ctl("await_online_quorum_plus_one", "-q", "-t", "0.1")
    assert ended.code == 69 and "time is up" in ended.err
    assert two.node is not None


def test_a_quorum_queue_that_nobody_else_has(wire: Wire, ctl: Ctl) -> None:
    one, *_ = cluster("one@host", "two@host", "three@host")
    wire.server = one
    one.world.client().declare("q", durable=True, arguments={"x-queue-type": Field("S", "quorum")})
    ended = ctl("check_if_node_is_quorum_critical", "-q")
    assert ended == Ended(69, "", "queue 'q' in vhost '/' would lose quorum if node one@host is stopped\n")
