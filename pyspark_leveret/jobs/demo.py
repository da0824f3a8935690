"""`make demo`: a cluster, load, a node killed, and an audit that says whether anything was lost.

Everything is real: three broker processes, `leveret perf` as clients, SIGKILL, and `leveret pipeline audit`. The load
has a publisher and a consumer at the node that is killed, with unconfirmed messages and unacknowledged deliveries;
others are at the nodes that survive and keep their connections. All clients write ledgers, so that the audit need not
believe the broker. Only a folder with the report and the logs is left.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import leveret.testing
from leveret.client.address import parse_uri
from leveret.client.amqp import BrokerError
from leveret.client.connection import Connection
from leveret.data.client import DataClient, DataError
from leveret.testing import AdminError, Broker, NotRunning

QUEUE: Final = "orders"
LOAD_S: Final = 10
KILL_AFTER_S: Final = 4.0
RATE: Final = 1_500  # Messages a second of each publisher: some tens of thousands in all.
START_S: Final = 60.0
SYNC_S: Final = 60.0
POLICY: Final = {"ha-mode": "all", "ha-sync-mode": "automatic", "journal": "full"}
CONFIG: Final = "management.tcp.port = 0"


class Failed(Exception):
    """The text is for the user."""


class Demo:
    """A cluster of three nodes, and the steps of the demonstration."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.cluster = leveret.testing.cluster(3, where="beside", config=CONFIG, sync=True)
        self.began = time.monotonic()

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.began:5.1f} s] {text}", flush=True)

    def close(self) -> None:
        """Stops all nodes and keeps their logs."""
        self.cluster.stop()
        for node in self.cluster.brokers:
            if node.log_file.exists():
                shutil.copy(node.log_file, os.path.join(self.folder, f"{node.name}.log"))
        self.cluster.close()

    def client(self, node: Broker) -> DataClient:
        return DataClient([self.server(node)], patience_s=START_S)

    def server(self, node: Broker) -> str:
        return f"http://127.0.0.1:{node.ports['management']}"

    # -- Steps -----------------------------------------------------------------------------------------------------

    def set_up(self) -> None:
        self.cluster.start()
        first = self.cluster.brokers[0]
        first.admin.set_policy("demo", f"^{QUEUE}$", POLICY)
        with Connection(parse_uri(first.url), "demo") as connection:
            connection.declare_queue(QUEUE)  # The node where a queue is declared leads it.
        self.wait(lambda: self.in_sync(first) == 3, "all mirrors are in sync")

    @contextmanager
    def load(self, name: str, *words: str) -> Iterator[subprocess.Popen[str]]:
        """Runs `leveret perf` on the queue, and kills it at the end if it still runs."""
        command = [
            sys.executable,
            "-m",
            "leveret",
            "perf",
            "--quiet",
            "-p",
            "-u",
            QUEUE,
            "-s",
            "200",
            "-f",
            "persistent",
        ]
        with open(os.path.join(self.folder, f"{name}.log"), "w", encoding="utf-8") as log:
            process = subprocess.Popen(
                [*command, "--ledger", self.ledger, *words], stdout=log, stderr=subprocess.STDOUT, text=True
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()

    @property
    def ledger(self) -> str:
        return os.path.join(self.folder, "ledger")

    def in_sync(self, node: Broker) -> int:
        [info] = self.client(node).queues([QUEUE])
        return sum(member.in_sync for member in info.members)

    def waiting(self, node: Broker) -> int:
        [info] = self.client(node).queues([QUEUE])
        return info.messages

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + SYNC_S
        while True:
            try:
                if condition():
                    return
            except DataError as error:
                if time.monotonic() > deadline:
                    raise Failed(f"in vain waited until {what}: {error}") from None
            if time.monotonic() > deadline:
                raise Failed(f"in vain waited until {what}")
            time.sleep(0.1)

    def audit(self) -> int:
        servers = ",".join(self.server(node) for node in self.cluster.brokers)
        out = os.path.join(self.folder, "audit")
        # With so little data, compiling Spark's plans would take longer than running them uncompiled.
        settings = ("spark.sql.shuffle.partitions=4", "spark.sql.codegen.wholeStage=false", "spark.ui.enabled=false")
        more = [word for setting in settings for word in ("--conf", setting)]
        command = [sys.executable, "-m", "leveret", "pipeline", "audit", "--servers", servers, "--out", out]
        done = subprocess.run(
            [*command, "--ledger", self.ledger, *more],
            check=False,
            capture_output=True,
            text=True,
        )
        if not done.stdout:
            raise Failed(f"the audit failed:\n{done.stderr[-2000:]}")
        print(done.stdout, flush=True)
        self.say(f"report: {os.path.join(out, 'report.html')}")
        return done.returncode

    def run(self) -> int:
        one, two, three = self.cluster.brokers
        self.say("starting three nodes")
        self.set_up()
        self.say(
            f"queue '{QUEUE}' is led by {one.name} and mirrored at the others; all that happens to it is journaled"
        )
        common = ("-c", "200", "-q", "100", "-r", str(RATE))
        with ExitStack() as loads:
            staying = loads.enter_context(
                self.load("staying", "--uri", two.url, "--uri", three.url, "-x", "2", "-y", "2",
                          "-z", str(LOAD_S), *common)
            )  # fmt: skip
            dying = loads.enter_context(self.load("dying", "--uri", one.url, "-z", str(LOAD_S), *common))
            self.say(f"load: three publishers and three consumers, one of each at {one.name}, which is about to die")
            time.sleep(KILL_AFTER_S)
            one.kill()
            self.say(f"kill -9 {one.name}: its clients are cut off, the others go on with a new master")
            dying.wait(timeout=START_S)
            one.start()
            self.say(f"{one.name} is started again, and is filled with what it missed")
            if staying.wait(timeout=3 * START_S):
                self.say(f"a client at another node noticed something: see {self.folder}/staying.log")
        self.wait(lambda: self.in_sync(two) == 3, "all mirrors are in sync again")
        left = self.waiting(two)
        self.say(f"the load has ended, all three are in sync again; {left:,} messages are left, which are fetched now")
        self.drain(two, left)
        self.say("the audit: Spark reads all journals, the queue, and what the clients wrote down")
        code = self.audit()
        self.close()
        self.say(f"all nodes have stopped; remove {self.folder}, with their logs, when you have seen the report")
        return code

    def drain(self, node: Broker, left: int) -> None:
        if left:
            with self.load("drain", "--uri", node.url, "-x", "0", "-q", "100", "-D", str(left)) as process:
                process.wait(timeout=START_S)
        self.wait(lambda: self.waiting(node) == 0, "the queue is empty")


def main() -> int:
    folder = tempfile.mkdtemp(prefix="leveret-demo-")
    demo = Demo(folder)
    try:
        return demo.run()
    except (Failed, AdminError, BrokerError, DataError, NotRunning, OSError, subprocess.TimeoutExpired) as error:
        print(f"demo: {error}\nWhat there is to look at is in {folder}", file=sys.stderr)
        return 70
    finally:
        demo.close()


if __name__ == "__main__":
    sys.exit(main())
