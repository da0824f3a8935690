"""The server as other clients of MQTT see it, over TCP, TLS and WebSocket: Node's mqtt, and aiomqtt."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import aiomqtt
import pytest

from tests.support.certificates import issue
from tests.support.servers import PATIENCE_S, ROOT, Server

SCRIPT = Path(__file__).parent / "node" / "session.js"
NODE = shutil.which("node")


class Served(NamedTuple):
    server: Server
    authority: Path

    def port(self, transport: str) -> int:
        server = self.server
        ports = {
            "mqtt": server.mqtt_port,
            "mqtts": server.mqtt_tls_port,
            "ws": server.web_mqtt_port,
            "wss": server.web_mqtt_tls_port,
        }
        return ports[transport]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("clients")
    issue(folder)
    listeners = ("mqtt.listeners.tcp.1", "mqtt.listeners.ssl.1", "web_mqtt.tcp.listener", "web_mqtt.ssl.listener")
    config = "".join(f"{listener} = 127.0.0.1:0\n" for listener in listeners)
    config += f"ssl_options.certfile = {folder}/server.pem\nssl_options.keyfile = {folder}/server.key\n"
    server = Server(folder / "node", config).start()
    yield Served(server, folder / "ca.pem")
    server.end()


@pytest.mark.skipif(NODE is None, reason="no node on this machine")
@pytest.mark.skipif(not (ROOT / "node_modules" / "mqtt").is_dir(), reason="no mqtt: `make node-clients` installs it")
@pytest.mark.parametrize("transport", ["mqtt", "mqtts", "ws", "wss"])
def test_node(served: Served, transport: str) -> None:
    assert NODE is not None
    command = [NODE, str(SCRIPT), f"{transport}://127.0.0.1:{served.port(transport)}/ws", str(served.authority)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("version", [aiomqtt.ProtocolVersion.V311, aiomqtt.ProtocolVersion.V5])
@pytest.mark.parametrize("transport", ["mqtt", "mqtts", "ws", "wss"])
async def test_aiomqtt(served: Served, version: aiomqtt.ProtocolVersion, transport: str) -> None:
    prefix = f"aiomqtt/{version}/{transport}"

    def client(name: str) -> aiomqtt.Client:
        is_tls = transport.endswith("s") and transport != "ws"
        return aiomqtt.Client(
            "127.0.0.1",
            served.port(transport),
            username="guest",
            password="guest",
            identifier=f"{prefix}/{name}",
            protocol=version,
            transport="websockets" if transport.startswith("ws") else "tcp",
            websocket_path="/ws",
            tls_context=ssl.create_default_context(cafile=str(served.authority)) if is_tls else None,
        )

    async with client("one") as one, client("other") as other:
        for qos in (0, 1, 2):
            await one.subscribe(f"{prefix}/{qos}/#", qos)
            await asyncio.gather(*(other.publish(f"{prefix}/{qos}/a.b", str(number), qos) for number in range(20)))
            await other.publish(f"{prefix}/{qos}/kept", "kept", qos, retain=True)
        got = [await asyncio.wait_for(anext(one.messages), PATIENCE_S) for _ in range(63)]
        for qos in (0, 1, 2):
            mine = [message for message in got if message.qos == qos]
            assert {str(message.topic) for message in mine} == {f"{prefix}/{qos}/a.b", f"{prefix}/{qos}/kept"}
            assert len(mine) == 21
        await other.subscribe(f"{prefix}/+/kept")
        found = [await asyncio.wait_for(anext(other.messages), PATIENCE_S) for _ in range(3)]
        assert all(message.retain and message.payload == b"kept" for message in found)
