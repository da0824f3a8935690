"""`leveret server` as real processes that form a cluster."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leveret.links.frame_types import CONTROL, HELLO
from leveret.links.link import Identity
from leveret.node.sockets.peer_socket import call
from tests.support.members import free_port
from tests.support.servers import read_line, until

COOKIE = "oatmeal"
START_S = 60.0


class Nodes:
    """Nodes of one list, which every one of them is given."""

    def __init__(self, folder: Path, count: int, tries: int) -> None:
        self.folder = folder
        self.ports = [free_port() for _ in range(count)]
        self.names = [f"n{number}@127.0.0.1" for number in range(1, count + 1)]
        self.config = folder / "leveret.conf"
        self.config.write_text(
            f"cluster_formation.discovery_retry_interval = 50ms\ncluster_formation.discovery_retry_limit = {tries}\n"
            + "".join(
                f"cluster_formation.classic_config.nodes.{number} = {name}:{port}\n"
                for number, (name, port) in enumerate(zip(self.names, self.ports, strict=True))
            )
        )
        self.running: dict[int, subprocess.Popen[str]] = {}

    def start(self, *numbers: int) -> None:
        """Begin, and do not wait."""
        for number in numbers:
            command = [sys.executable, "-m", "leveret", "server", "--config", str(self.config), "--port", "0"]
            command += ["--name", self.names[number], "--cluster-port", str(self.ports[number])]
            with open(self.folder / f"{number}.log", "ab") as log:
                self.running[number] = subprocess.Popen(
                    [*command, "--data", str(self.folder / str(number))],
                    env={**os.environ, "LEVERET_COOKIE": COOKIE, "LEVERET_RUNTIME_DIR": str(self.folder / "nodes")},
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )

    def ready(self) -> None:
        for number, process in self.running.items():
            assert read_line(process, START_S).startswith("ready "), self.log(number)

    def log(self, number: int) -> str:
        return (self.folder / f"{number}.log").read_text()

    def end(self, *numbers: int) -> list[int]:
        ending = [self.running.pop(number) for number in numbers]
        for process in ending:
            process.send_signal(signal.SIGTERM)
        for process in ending:
            process.communicate(timeout=START_S)
        return [process.returncode for process in ending]

    def ask(self, kind: int, question: dict[str, Any]) -> list[dict[str, Any]]:
        """What each running node answers."""

        async def ask_all() -> list[bytes]:
            me, question_bytes = Identity("test@localhost", os.urandom(16)), json.dumps(question).encode()
            places = [("127.0.0.1", self.ports[number]) for number in self.running]
            return await asyncio.gather(
                *(call(one, kind, question_bytes, START_S, me, COOKIE.encode()) for one in places)
            )

        return [json.loads(answer) for answer in asyncio.run(ask_all())]

    def voters(self) -> list[int]:
        """How many each node counts."""
        answers = self.ask(CONTROL, {"command": "cluster_status", "arguments": {}})
        return [sum(member["voter"] for member in answer["ok"]["members"]) for answer in answers]

    def the_cluster(self) -> str:
        """The one that all running nodes are in."""
        (cluster,) = {hello["cluster"] for hello in self.ask(HELLO, {})}
        assert isinstance(cluster, str)
        return cluster


@pytest.fixture
def nodes(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Nodes]:
    """Patient ones: they start together, but on a busy machine one may come seconds after the other."""
    nodes = Nodes(tmp_path, 3, getattr(request, "param", 1_200))
    yield nodes
    nodes.end(*list(nodes.running))


def test_nodes_with_one_list_form_one_cluster_and_a_wiped_founder_founds_no_second(nodes: Nodes) -> None:
    nodes.start(2, 1, 0)
    nodes.ready()
    cluster = nodes.the_cluster()
    until(lambda: nodes.voters() == [3, 3, 3], "all nodes may vote")
    assert nodes.end(0) == [0]
    shutil.rmtree(nodes.folder / "0")
    nodes.start(0)
    wiped = nodes.running.pop(0)
    wiped.communicate(timeout=START_S)
    assert wiped.returncode == 69
    assert "forget_cluster_node" in nodes.log(0).splitlines()[-1]
    assert nodes.the_cluster() == cluster


@pytest.mark.parametrize("nodes", [20], indirect=True, ids=["impatient"])
def test_without_the_smallest_nobody_founds(nodes: Nodes) -> None:
    nodes.start(1, 2)
    for number, process in nodes.running.items():
        process.communicate(timeout=START_S)
        assert process.returncode == 69
        assert "n1@127.0.0.1 founds the cluster, and does not answer. Start n1@127.0.0.1 too" in nodes.log(number)
