"""`leveret cluster`: a whole cluster on one machine, to try it out.

`start` runs one `leveret server` a node as a child and stays in the foreground. It is no supervisor: a node that dies
is reported, not restarted, since to kill one and to see what happens is what such a cluster is for; the line that
starts it again is printed, and works in any terminal.

The folder remembers the cluster. `cluster.json` has the names and ports, because the nodes find each other again by the
cluster ports that their data names; so these stay as they were, whatever options a later start has. `founded` is
written once the first node has founded the cluster. From then on that node too is told to join, which a node with data
ignores, and which keeps one whose folder was deleted from founding a second cluster beside the first.

A new cluster gets one policy, which mirrors every queue at all nodes: whoever kills a node is to see that nothing is
missing. It is a policy like any other, and can be changed or cleared. Until it was set once, it is due: a start that
ended before leaves that to the next one, which would otherwise have no mirrors and not say so.

Every cluster has the same names for its nodes, and several may run side by side. So a node is meant by its cluster port
wherever its name alone could be another's.

Children do not get the terminal's Ctrl-C (they have a session of their own), so that there is one who stops them all,
once. If this process is killed, they live on; `leveret cluster stop` finds them by what running nodes leave in
`leveret.node.system.local_registry`.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import os
import shlex
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import IO, Final, NamedTuple

from leveret.base.exit_codes import CONFIG, OK, SOFTWARE, UNAVAILABLE, USAGE
from leveret.node.config import schema
from leveret.node.config.settings import (
    CLUSTER_PORT_OFFSET,
    DEFAULT_HOST,
    DEFAULT_PORT,
    MANAGEMENT_PORT_OFFSET,
    Listener,
)
from leveret.node.sockets.cookie import FILE_NAME, BadCookie, find_cookie
from leveret.node.system import local_registry
from leveret.node.system.data_folder import FolderInUse, folder_lock

STATE: Final = "cluster.json"
LOCK: Final = "cluster.lock"
DEFAULT_NODES: Final = 3
NODES_MAX: Final = 32
PORT_MAX: Final = 65_535
STOP_S: Final = 60.0
REMIND_S: Final = 10.0
LINES_SHOWN: Final = 12
MIRROR_ALL: Final = ("mirror-all", "", '{"ha-mode": "all", "ha-sync-mode": "automatic"}')
RETRIES: Final = {"INTERVAL": "100ms", "LIMIT": "600"}
# Who meets whom is decided here. All else that names one node is overridden by the command line.
NOT_FOR_CHILDREN: Final = ("LEVERET_JOIN", "LEVERET_CLUSTER_FORMATION_")


class Wrong(Exception):
    """The command cannot be carried out; the text says why."""

    def __init__(self, text: str, code: int = USAGE) -> None:
        super().__init__(text)
        self.code = code


class Planned(NamedTuple):
    """One node, whether it runs or not."""

    name: str
    amqp: int
    cluster: int
    management: int

    @property
    def short(self) -> str:
        return self.name.partition("@")[0]


class Plan(NamedTuple):
    """All that a start needs to know."""

    folder: str
    host: str
    nodes: tuple[Planned, ...]
    founded: bool
    policy_due: bool = False

    def data(self, node: Planned) -> str:
        return os.path.join(self.folder, node.short)

    def log(self, node: Planned) -> str:
        return os.path.join(self.folder, f"{node.short}.log")

    def command(self, node: Planned) -> list[str]:
        """The arguments of `leveret`."""
        words = ["server", "--name", node.name, "--data", self.data(node), "--host", self.host]
        words += ["--port", str(node.amqp), "--cluster-port", str(node.cluster), "--cluster-host", self.host]
        words += ["--management-port", str(node.management)]
        words += ["--processes", "1"]  # Whatever LEVERET_PROCESSES says: the ports of two such nodes would overlap.
        words += ["--cookie-file", os.path.join(self.folder, FILE_NAME)]
        if self.founded or node != self.nodes[0]:
            for other in self.nodes:
                if other != node:
                    words += ["--join", str(Listener(self.host, other.cluster))]
        return words

    def reached_at(self, node: Planned) -> list[str]:
        """The options of `leveretctl` that mean this node and no other."""
        return ["--host", self.host, "--port", str(node.cluster), "--cookie-file", os.path.join(self.folder, FILE_NAME)]


def cluster(parsed: argparse.Namespace) -> int:
    folder = os.path.abspath(os.path.expanduser(parsed.data))
    try:
        match parsed.action:
            case "start":
                bases = (parsed.base_port, parsed.cluster_base_port, parsed.management_base_port)
                return start(folder, parsed.nodes, parsed.host, *bases)
            case "stop":
                return stop(folder)
            case "status":
                return status(folder)
    except Wrong as error:
        print(f"leveret: {error}", file=sys.stderr)
        return error.code
    raise AssertionError(f"cluster {parsed.action} has a parser and no code")


# -- What is to run ----------------------------------------------------------------------------------------------


def make_plan(
    folder: str,
    before: Plan | None,
    nodes: str | None,
    host: str | None,
    base: str | None,
    cluster_base: str | None,
    management_base: str | None = None,
) -> Plan:
    """The options of the command line, together with those that the data folder remembers."""
    known = () if before is None else before.nodes
    count = _number("--nodes", nodes, 1, NODES_MAX, len(known) or DEFAULT_NODES)
    if count < len(known):
        raise Wrong(
            f"the cluster in {folder} has {len(known)} nodes, and {count} of them may not be a majority. Start all, "
            "and remove nodes with leveretctl forget_cluster_node"
        )
    first = _number("--base-port", base, 0, PORT_MAX + 1 - count, DEFAULT_PORT)
    offset = first + CLUSTER_PORT_OFFSET if first else 0
    cluster_first = _number("--cluster-base-port", cluster_base, 0, PORT_MAX + 1 - count, offset)
    if cluster_first + count > PORT_MAX + 1:
        raise Wrong(f"the cluster ports would begin at {cluster_first}, which is too high; set --cluster-base-port")
    management_offset = first + MANAGEMENT_PORT_OFFSET if first else 0
    management_first = _number("--management-base-port", management_base, 0, PORT_MAX + 1 - count, management_offset)
    if management_first + count > PORT_MAX + 1:
        raise Wrong(f"the management ports would begin at {management_first}; set --management-base-port")
    try:
        place = before.host if before is not None else DEFAULT_HOST
        place = schema.host(host) if host is not None else place
    except schema.NotAllowed as error:
        raise Wrong(f"--host {host}: not allowed; allowed: {error}") from None
    free = iter(free_ports(place, 3 * count))
    planned = []
    for number in range(count):
        old = known[number] if number < len(known) else None
        amqp = old.amqp if old is not None and base is None else first + number if first else next(free)
        meets = old.cluster if old is not None else cluster_first + number if cluster_first else next(free)
        kept = old is not None and base is None and management_base is None
        management = old.management if old is not None and kept else management_first and management_first + number
        planned.append(Planned(f"leveret{number + 1}@localhost", amqp, meets, management or next(free)))
    due = count > 1 if before is None else before.policy_due
    return Plan(folder, place, tuple(planned), before is not None and before.founded, due)


def _number(option: str, text: str | None, low: int, high: int, default: int) -> int:
    if text is None:
        return default
    try:
        return schema.whole(low, high)(text)
    except schema.NotAllowed as error:
        raise Wrong(f"{option} {text}: not allowed; allowed: {error}") from None


def free_ports(host: str, count: int) -> list[int]:
    """Ports that nobody has. All are held until the last one is known, so that none comes twice."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sockets: list[socket.socket] = []
    try:
        for _ in range(count):
            sockets.append(socket.socket(family, socket.SOCK_STREAM))
            sockets[-1].bind((host, 0))
        return [one.getsockname()[1] for one in sockets]
    except OSError as error:
        raise Wrong(f"--host {host}: {error.strerror or error}") from None
    finally:
        for one in sockets:
            one.close()


def read_plan(folder: str) -> Plan | None:
    """None: no cluster was started in this folder."""
    path = os.path.join(folder, STATE)
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        nodes = tuple(
            Planned(
                str(one["name"]),
                int(one["amqp"]),
                int(one["cluster"]),
                # Clusters of before there was such a port have none.
                int(one.get("management", int(one["amqp"]) + MANAGEMENT_PORT_OFFSET)),
            )
            for one in found["nodes"]
        )
        return Plan(folder, str(found["host"]), nodes, bool(found["founded"]), bool(found.get("policy_due", False)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Wrong(f"{path} cannot be read: {error}", CONFIG) from None


def write_plan(plan: Plan) -> None:
    path = os.path.join(plan.folder, STATE)
    nodes = [node._asdict() for node in plan.nodes]
    content = {"host": plan.host, "founded": plan.founded, "policy_due": plan.policy_due, "nodes": nodes}
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.new", path)


@contextmanager
def sole_starter(folder: str) -> Iterator[None]:
    """Two starts in one folder would fight for ports; the second one is told who the first is."""
    with open(os.path.join(folder, LOCK), "a+", encoding="ascii") as file:
        if not _locked(file):
            raise Wrong(f"the cluster in {folder} is already running, started by process {_owner(file)}", UNAVAILABLE)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _owner(file: IO[str]) -> int:
    file.seek(0)
    text = file.read(20)
    return int(text) if text.isdecimal() else 0


# -- leveret cluster start ---------------------------------------------------------------------------------------


def start(
    folder: str,
    nodes: str | None,
    host: str | None,
    base: str | None,
    cluster_base: str | None,
    management_base: str | None = None,
) -> int:
    try:
        os.makedirs(folder, mode=0o750, exist_ok=True)
        with sole_starter(folder):
            before = read_plan(folder)
            if before is not None and not before.founded:
                before = None  # It did not come to anything, perhaps because of its ports.
            plan = make_plan(folder, before, nodes, host, base, cluster_base, management_base)
            running = [node.name for node in plan.nodes if _is_running(plan, node)]
            if running:
                raise Wrong(
                    f"{', '.join(running)} is already running; stop it with: leveret cluster stop --data {folder}",
                    UNAVAILABLE,
                )
            find_cookie(folder)  # Made now, by one, instead of by each.
            write_plan(plan)
            return asyncio.run(Cluster(plan).run())
    except BadCookie as error:
        raise Wrong(str(error), CONFIG) from None
    except OSError as error:
        raise Wrong(f"{folder}: {error.strerror or error}", UNAVAILABLE) from None


class Child:
    """One node's process."""

    def __init__(self, plan: Plan, node: Planned) -> None:
        self.node = node
        self.log = plan.log(node)
        self.command = plan.command(node)
        self.process: asyncio.subprocess.Process | None = None
        self.ready = False
        self.log_from = 0  # where in the log this run begins

    async def spawn(self) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(NOT_FOR_CHILDREN)}
        # All begin at once, and those that join are to notice soon that the first is there.
        hasty = {"LEVERET_CLUSTER_FORMATION_DISCOVERY_RETRY_" + name: value for name, value in RETRIES.items()}
        with open(self.log, "ab") as log:
            self.log_from = log.tell()
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "leveret",
                *self.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=inherited | (hasty if "--join" in self.command else {}),
                start_new_session=True,
            )

    async def follow(self, on_ready: Callable[[Child], None]) -> int:
        """Until it ends; its exit code."""
        assert self.process is not None and self.process.stdout is not None
        async for line in self.process.stdout:
            if line.startswith(b"ready") and not self.ready:
                self.ready = True
                on_ready(self)
        return await self.process.wait()

    def send(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)

    def last_lines(self) -> list[str]:
        with open(self.log, "rb") as file:
            file.seek(self.log_from)
            return file.read().decode(errors="replace").splitlines()[-LINES_SHOWN:]


class Cluster:
    """All nodes, from here to their end."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.children = [Child(plan, node) for node in plan.nodes]
        self.stopping = False
        self.all_ready = asyncio.Event()
        self.code = OK

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.stop)
        print(f"starting {len(self.children)} nodes, data and logs in {self.plan.folder}", flush=True)
        for child in self.children:
            await child.spawn()
        greeter, reminder = loop.create_task(self.greet()), loop.create_task(self.remind())
        ends = [loop.create_task(self.attend(child)) for child in self.children]
        try:
            await asyncio.gather(*ends)
        finally:
            greeter.cancel()
            reminder.cancel()
        print("all nodes have stopped", flush=True)
        return self.code

    async def attend(self, child: Child) -> None:
        code = await child.follow(self.on_ready)
        if not self.stopping or code not in (0, -signal.SIGTERM):
            self.on_death(child, code)

    def on_ready(self, child: Child) -> None:
        if child is self.children[0] and not self.plan.founded:
            self.plan = self.plan._replace(founded=True)
            write_plan(self.plan)
        if all(one.ready for one in self.children) and not self.stopping:
            self.all_ready.set()

    async def greet(self) -> None:
        await self.all_ready.wait()
        if self.plan.policy_due and not await self.mirror_all():
            return
        print("\n".join(self.welcome()), flush=True)

    async def mirror_all(self) -> bool:
        """Set the policy that mirrors all queues, and return whether that worked; without it the cluster stops."""
        asked = [sys.executable, "-m", "leveret.cli.ctl", *self.plan.reached_at(self.plan.nodes[0]), "--quiet"]
        asking = await asyncio.create_subprocess_exec(
            *asked, "set_policy", *MIRROR_ALL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        said, _ = await asking.communicate()
        if asking.returncode:
            print(f"the policy {MIRROR_ALL[0]} could not be set:\n{said.decode(errors='replace')}", flush=True)
            self.code = self.code or SOFTWARE
            if not self.stopping:
                self.stop()
            return False
        self.plan = self.plan._replace(policy_due=False)
        write_plan(self.plan)
        return True

    def on_death(self, child: Child, code: int) -> None:
        assert child.process is not None
        how = f"ended with code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
        print(f"{child.node.name} (pid {child.process.pid}) {how}; its log: {child.log}", flush=True)
        if not child.ready or self.stopping:
            self.code = self.code or (code if code > 0 else SOFTWARE)
            for line in child.last_lines():
                print(f"  {line}", flush=True)
        if self.stopping:
            return
        if child.ready:
            again = self.plan.command(child.node)
            print(f"to start it again:\n  {_beside_python('leveret')} {shlex.join(again)}", flush=True)
        else:
            print("the cluster was not started; if a port is in use, choose others with --base-port", flush=True)
            self.stop()

    def stop(self) -> None:
        """Asks all to stop; asked a second time, kills them."""
        if self.stopping:
            print("killing the remaining nodes", flush=True)
        else:
            print("stopping all nodes", flush=True)
            asyncio.get_running_loop().call_later(STOP_S, self.stop)
        for child in self.children:
            child.send(signal.SIGKILL if self.stopping else signal.SIGTERM)
        self.stopping = True

    async def remind(self) -> None:
        while not self.all_ready.is_set():
            await asyncio.sleep(REMIND_S)
            late = [child for child in self.children if not child.ready]
            if late and not self.stopping:
                logs = ", ".join(child.log for child in late)
                print(f"waiting for {', '.join(child.node.name for child in late)}; see {logs}", flush=True)

    def fate(self) -> str:
        """Say what becomes of the queue when the first node is killed."""
        first, *others = (node.name for node in self.plan.nodes)
        if not others:
            return f"{first}: the queue is available again when the node is started again"
        if len(others) == 1:
            return f"{first}, the queue's master: {others[0]} takes over, and is the only voter until {first} is back"
        return f"{first}, the queue's master: one of its mirrors takes over"

    def welcome(self) -> list[str]:
        host, nodes = self.plan.host, self.plan.nodes
        pids = [child.process.pid for child in self.children if child.process is not None]
        lines = [
            f"  {node.name:<20} amqp {host}:{node.amqp}  http {host}:{node.management}  cluster port {node.cluster}"
            f"  pid {pid}"
            for node, pid in zip(nodes, pids, strict=True)
        ]
        amqp, management = ",".join(str(one.amqp) for one in nodes), ",".join(str(one.management) for one in nodes)
        lines.append(f"ready nodes={len(nodes)} amqp={amqp} management={management}")
        page = f"http://{host}:{nodes[0].management}"
        lines.append(f"page {page}  log in as guest, password guest, from this machine only")
        publish, consume = nodes[0], nodes[-1]
        namesakes = [entry for entry in local_registry.entries() if entry.name == consume.name]
        meant = ["-n", consume.short] if len(namesakes) == 1 else self.plan.reached_at(consume)
        python = "python3" if find_spec("pika") is None else _tool(sys.executable)
        declare = "q = c.channel(); q.queue_declare('tasks', durable=True)"
        connect = f"{python} -c \"import pika; c = pika.BlockingConnection(pika.ConnectionParameters('{host}', {{}}))"
        lines += [
            "",
            "try" + (" (after pip install pika):" if python == "python3" else ":"),
            f"  {connect.format(publish.amqp)}; {declare}; q.basic_publish('', 'tasks', b'hello'); c.close()\"",
            f"  {_beside_python('leveretctl')} {shlex.join(meant)} list_queues name messages pid slave_pids",
            f"  kill -9 {pids[0]}    # {self.fate()}",
            f"  {connect.format(consume.amqp)}; {declare}; print(q.basic_get('tasks', auto_ack=True)[2])\"",
            f"Ctrl-C stops all nodes; to start them again: {_beside_python('leveret')} cluster start --data"
            f" {shlex.quote(self.plan.folder)}",
        ]
        return lines


def _beside_python(name: str) -> str:
    return _tool(os.path.join(os.path.dirname(sys.executable), name))


def _tool(path: str) -> str:
    """Return what a person types to run a program: its name if that finds it, else its shorter path."""
    name = os.path.basename(path)
    found = shutil.which(name)
    if found is None or os.path.abspath(found) != os.path.abspath(path):
        name = min(path, os.path.relpath(path), key=len) if os.path.exists(path) else name
    return shlex.quote(name)


# -- leveret cluster stop, leveret cluster status ----------------------------------------------------------------


def stop(folder: str) -> int:
    plan = _plan_there(folder)
    with open(os.path.join(folder, LOCK), "a+", encoding="ascii") as file:
        owner = 0 if _locked(file) else _owner(file)
        if owner:
            os.kill(owner, signal.SIGTERM)
            if not _until(lambda: _locked(file), STOP_S):
                raise Wrong(f"process {owner}, which started the cluster, has not ended in {STOP_S:g} s", UNAVAILABLE)
    # Nodes that were started again by hand, and those whose starter was killed.
    others = [entry for node in plan.nodes if (entry := _entry(plan, node)) is not None]
    for entry in others:
        os.kill(entry.pid, signal.SIGTERM)
    if not _until(lambda: not any(map(local_registry.is_running, others)), STOP_S):
        left = ", ".join(f"{entry.name} (pid {entry.pid})" for entry in others if local_registry.is_running(entry))
        raise Wrong(f"still running after {STOP_S:g} s: {left}", UNAVAILABLE)
    if hidden := [node.name for node in plan.nodes if _is_running(plan, node)]:
        raise Wrong(
            f"{', '.join(hidden)} is still running, and {local_registry.folder()} does not name its process",
            UNAVAILABLE,
        )
    print("all nodes have stopped" if owner or others else f"no node of {folder} was running")
    return OK


def status(folder: str) -> int:
    """A line a node. What the nodes think of each other, leveretctl cluster_status says."""
    plan = _plan_there(folder)
    running = 0
    for node in plan.nodes:
        entry, runs = _entry(plan, node), _is_running(plan, node)
        running += runs
        state = "not running" if not runs else "running" if entry is None else f"running, pid {entry.pid}"
        where = f"amqp {plan.host}:{node.amqp}  http {plan.host}:{node.management}  cluster port {node.cluster}"
        print(f"{node.name:<20} {where}  {state}")
    return OK if running == len(plan.nodes) else UNAVAILABLE


def _plan_there(folder: str) -> Plan:
    plan = read_plan(folder)
    if plan is None:
        raise Wrong(f"no cluster was started in {folder}: there is no {STATE}")
    return plan


def _entry(plan: Plan, node: Planned) -> local_registry.Entry | None:
    """The process that runs a node, whoever started it."""
    folder = os.path.realpath(plan.data(node))
    return next((one for one in local_registry.entries() if os.path.realpath(one.data_dir) == folder), None)


def _is_running(plan: Plan, node: Planned) -> bool:
    """Tell whether a running node has locked the folder, which is so even if its registry entry is lost."""
    if not os.path.isdir(plan.data(node)):
        return False
    try:
        with folder_lock(plan.data(node)):
            return False
    except FolderInUse:
        return True


def _until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
