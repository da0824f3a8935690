"""`make demo`: a cluster, load, a node killed, and an audit that says whether anything was lost.

Everything is real and nothing is left behind but a folder: three `leveret server` processes, `leveret perf` as clients,
SIGKILL, and `leveret pipeline audit`. The load has a publisher and a consumer at the very node that dies, whose
unconfirmed messages and unacknowledged deliveries hang in the air; and others at the nodes that live on, which keep
their connections: what they had under way is confirmed or refused, and they go on. All clients write ledgers, so the
audit need not believe the broker.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from leveret.cli.cluster import Plan, Planned, make_plan
from leveret.client.address import parse_uri
from leveret.client.amqp import BrokerError
from leveret.client.connection import Connection
from leveret.data.client import DataClient, DataError
from leveret.node.cookie import find_cookie

QUEUE: Final = "orders"
LOAD_S: Final = 10
KILL_AFTER_S: Final = 4.0
RATE: Final = 1_500  # Messages a second of each publisher: some tens of thousands in all.
START_S: Final = 60.0
SYNC_S: Final = 60.0
POLICY: Final = '{"ha-mode": "all", "ha-sync-mode": "automatic", "journal": "full"}'


class Failed(Exception):
    """The text is for the user."""


class Demo:
    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.plan: Plan = make_plan(os.path.join(folder, "cluster"), None, "3", "127.0.0.1", "0", "0", "0")
        self.nodes: dict[str, subprocess.Popen[str]] = {}
        self.began = time.monotonic()
        os.makedirs(self.plan.folder, exist_ok=True)
        find_cookie(self.plan.folder)

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.began:5.1f} s] {text}", flush=True)

    # -- Nodes -----------------------------------------------------------------------------------------------------

    def start(self, node: Planned) -> None:
        """Returns when clients can connect."""
        with open(self.plan.log(node), "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "leveret", *self.plan.command(node)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.nodes[node.name] = process
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("ready"):
            raise Failed(f"{node.name} did not start; its log: {self.plan.log(node)}")

    def kill(self, node: Planned) -> None:
        process = self.nodes.pop(node.name)
        process.kill()
        process.communicate()

    def stop_all(self) -> None:
        for process in self.nodes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.nodes.values():
            try:
                process.communicate(timeout=START_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()

    def client(self, node: Planned) -> DataClient:
        return DataClient([f"127.0.0.1:{node.management}"], patience_s=START_S)

    # -- Steps -----------------------------------------------------------------------------------------------------

    def set_up(self) -> None:
        first = self.plan.nodes[0]
        self.start(first)
        self.plan = self.plan._replace(founded=True)
        for node in self.plan.nodes[1:]:
            self.start(node)
        ctl = [sys.executable, "-m", "leveret.cli.ctl", "-n", first.name, "--quiet", "set_policy", "demo", f"^{QUEUE}$"]
        done = subprocess.run([*ctl, POLICY], capture_output=True, text=True, check=False)
        if done.returncode:
            raise Failed(f"the policy could not be set: {done.stdout}{done.stderr}")
        with Connection(parse_uri(self.uri(first)), "demo") as connection:
            connection.declare_queue(QUEUE)  # Where it is declared, it is led.
        self.wait(lambda: self.in_sync(first) == 3, "all mirrors are in sync")

    def uri(self, node: Planned) -> str:
        return f"amqp://guest:guest@127.0.0.1:{node.amqp}/%2F"

    @contextmanager
    def load(self, name: str, *words: str) -> Iterator[subprocess.Popen[str]]:
        """A `leveret perf`, and its end."""
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

    def in_sync(self, node: Planned) -> int:
        [info] = self.client(node).queues([QUEUE])
        return sum(member.in_sync for member in info.members)

    def waiting(self, node: Planned) -> int:
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
        servers = ",".join(f"http://127.0.0.1:{node.management}" for node in self.plan.nodes)
        out = os.path.join(self.folder, "audit")
        # There is little data: to compile what Spark does with it would take longer than to do it.
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
        one, two, three = self.plan.nodes
        self.say(f"starting three nodes; their data and logs are in {self.plan.folder}")
        self.set_up()
        self.say(
            f"queue '{QUEUE}' is led by {one.name} and mirrored at the others; all that happens to it is journaled"
        )
        common = ("-c", "200", "-q", "100", "-r", str(RATE))
        with ExitStack() as loads:
            staying = loads.enter_context(
                self.load("staying", "--uri", self.uri(two), "--uri", self.uri(three), "-x", "2", "-y", "2",
                          "-z", str(LOAD_S), *common)
            )  # fmt: skip
            dying = loads.enter_context(self.load("dying", "--uri", self.uri(one), "-z", str(LOAD_S), *common))
            self.say(f"load: three publishers and three consumers, one of each at {one.name}, which is about to die")
            time.sleep(KILL_AFTER_S)
            self.kill(one)
            self.say(f"kill -9 {one.name}: its clients are cut off, the others go on with a new master")
            dying.wait(timeout=START_S)
            self.start(one)
            self.say(f"{one.name} is started again, and is filled with what it missed")
            if staying.wait(timeout=3 * START_S):
                self.say(f"a client at another node noticed something: see {self.folder}/staying.log")
        self.wait(lambda: self.in_sync(two) == 3, "all mirrors are in sync again")
        left = self.waiting(two)
        self.say(f"the load has ended, all three are in sync again; {left:,} messages are left, which are fetched now")
        self.drain(two, left)
        self.say("the audit: Spark reads all journals, the queue, and what the clients wrote down")
        code = self.audit()
        self.stop_all()
        self.say(f"all nodes have stopped; remove {self.folder} when you have seen the report")
        return code

    def drain(self, node: Planned, left: int) -> None:
        if left:
            with self.load("drain", "--uri", self.uri(node), "-x", "0", "-q", "100", "-D", str(left)) as process:
                process.wait(timeout=START_S)
        self.wait(lambda: self.waiting(node) == 0, "the queue is empty")


def main() -> int:
    folder = tempfile.mkdtemp(prefix="leveret-demo-")
    demo = Demo(folder)
    try:
        return demo.run()
    except (Failed, DataError, BrokerError, OSError, subprocess.TimeoutExpired) as error:
        print(f"demo: {error}\nWhat there is to look at is in {folder}", file=sys.stderr)
        return 70
    finally:
        demo.stop_all()


if __name__ == "__main__":
    sys.exit(main())
