"""`leveret server --processes N`: N nodes on one machine that are run as one thing, to use all its cores.

A node has one event loop, and so one core. The simplest way to use more is what is there already: more nodes. What has
to be added is that people see one thing, and that the cluster knows that these nodes share a machine.

*One thing.* This process starts the others, each a `leveret server` of its own, and does nothing else: it holds no
socket of a client and no message. All nodes listen at the same ports for AMQP, MQTT, STOMP and HTTP (SO_REUSEPORT): the
kernel gives each new connection to one of them, by a hash of the client's address, so that connections spread evenly
where there are many. A node that is drained, paused or stopped closes its listeners, and the kernel gives its share to
the others. The log on the console is one, since all have the same stderr; the service manager is told that the service
is ready when all nodes are. What stops one node for good (`leveretctl stop`, a configuration that is wrong) stops all;
one that crashes is started again. If this process is killed, the others stop.

*A node that cannot start.* In the first start of all it ends the group, with its exit code: nothing is lost by that,
and somebody looks. Later the others have data, and go on. One that has lost its data is refused by them until they are
told to forget what it was, and damaged data can be repaired with what they have: so they must run, and the service is
ready without the one. It is tried again all the while, and comes in when it is let in.

*Names.* The first node has the name, the data folder and the cluster port of the configuration, so that a single node
can get more processes, and a machine with several can go back to one after the others have left. The others are
`NAME-2@HOST` and so on, with folders beside the first one's and the following cluster and Prometheus ports. Each node
also has an HTTP port of its own, by which other nodes refer clients to it. Memory limits are divided.

*One machine.* All have the label `machine`. No two copies of a queue are on nodes with the same one: see
`leveret.metadata.rules.placement`. Two copies on one machine would cost twice and be lost together.

*Majority.* Every node has a vote. Of three machines with N processes each, the loss of a machine leaves 2N of 3N votes,
which is a majority. Of two machines, it leaves half, which is none: two machines with several processes need a witness
(N + 1 of 2N + 1 are left). On one machine, the loss of a process leaves a majority from three processes on; of two, the
lock of the dead node's folder proves that it is dead, and the other goes on alone (`leveret.node.cluster.two_nodes`).
If the whole machine fails, its nodes come back together with what is on their disks, as a single node would.

The first node founds or joins a cluster as the configuration says; the others join the first, or one another. If the
first has no data while others have theirs, it joins them instead of founding a second cluster, whether its data is gone
or it has left or was reset; for that, they must have a majority without it, and must have forgotten what it was, if
that had a vote.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Final

from leveret.base.exit_codes import CONFIG, DATA_ERROR, OK, SOFTWARE, UNAVAILABLE, USAGE
from leveret.node.cluster.consensus_log import has_log
from leveret.node.config.load import PROCESS
from leveret.node.config.schema import PROCESSES_MAX
from leveret.node.config.settings import Listener, Settings
from leveret.node.sockets.cookie import FILE_NAME, BadCookie, find_cookie, inherited
from leveret.node.system import systemd
from leveret.node.system.data_folder import METADATA, OTHER_FOLDER, make_folder

OWN_HTTP_OFFSET: Final = 1_000  # From the cluster port to the HTTP port of one node.
PORT_MAX: Final = 65_535
RESTART_S: Final = 1.0
RESTART_S_MAX: Final = 30.0
DOUBLED_MAX: Final = 10  # More often would exceed any limit, and in the end a number.
STOP_S: Final = 120.0
JOIN_RETRY_MS: Final = 100
# To start again would not help; and what is wrong is wrong for all.
FINAL: Final = (USAGE, CONFIG)
ASKING: Final = (signal.SIGTERM, signal.SIGINT)
PR_SET_PDEATHSIG: Final = 1
EVERYWHERE: Final = ("0.0.0.0", "::")

Address = tuple[str, int]


# -- Settings of one of them -------------------------------------------------------------------------------------


def of_process(settings: Settings, number: int) -> Settings:
    """Returns the settings of one node, counted from 1."""
    count, machine = settings.processes, settings.node_name.partition("@")[2]
    cluster = settings.cluster_listener._replace(port=_port(settings, number))
    # At the interface that HTTP is configured for, and no other.
    http = (*settings.management_listeners, *settings.management_tls_listeners, cluster)[0]
    own = Listener(http.host, cluster.port + OWN_HTTP_OFFSET)
    common = replace(
        settings,
        cluster_listener=cluster,
        node_labels=MappingProxyType({"machine": machine, **settings.node_labels}),
        # The one that others are told of comes first.
        management_listeners=(own, *settings.management_listeners) if settings.management_listeners else (),
        management_tls_listeners=(
            (own, *settings.management_tls_listeners)
            if settings.management_tls_listeners and not settings.management_listeners
            else settings.management_tls_listeners
        ),
        prometheus_listeners=tuple(
            one._replace(port=one.port + number - 1) if one.port else one for one in settings.prometheus_listeners
        ),
        memory_watermark_relative=_divided(settings.memory_watermark_relative, count),
        memory_watermark_absolute=_divided_bytes(settings.memory_watermark_absolute, count),
        cookie_file=_cookie_file(settings),
    )
    if number == 1:
        return common
    return replace(
        common,
        node_name=node_name(settings, number),
        data_dir=data_dir(settings, number),
        join=tuple(_address(settings, one) for one in range(1, count + 1) if one != number),
        discovery=None,
        discovery_retry_interval_ms=JOIN_RETRY_MS,
        discovery_retry_limit=settings.discovery_retry_limit
        * max(1, settings.discovery_retry_interval_ms // JOIN_RETRY_MS),
        load_definitions=None,  # Once is enough.
        log_file=None if settings.log_file is None else _numbered(settings.log_file, number),
    )


def node_name(settings: Settings, number: int) -> str:
    name, _, host = settings.node_name.partition("@")
    return settings.node_name if number == 1 else f"{name}-{number}@{host}"


def data_dir(settings: Settings, number: int) -> str:
    """Returns the folder of a node: beside that of the first, and named after the node if that one is."""
    if number == 1:
        return settings.data_dir
    folder, last = os.path.split(settings.data_dir)
    is_named = last == settings.node_name
    return os.path.join(folder, node_name(settings, number)) if is_named else f"{settings.data_dir}-{number}"


def problem(settings: Settings) -> str | None:
    """Returns why these settings are not for several processes, whatever else runs here; None if they are."""
    shared = _shared(settings)
    if any(one.port == 0 for _, one in (*shared, ("", settings.cluster_listener))):
        return "several processes share their ports, so that none of them can be 0, any free one"
    has_http = settings.management_listeners or settings.management_tls_listeners
    for key, first in (
        ("cluster.port", settings.cluster_listener.port + (OWN_HTTP_OFFSET if has_http else 0)),
        *(("prometheus.tcp.port", one.port) for one in settings.prometheus_listeners),
    ):
        if first + settings.processes - 1 > PORT_MAX:
            return f"there are no {settings.processes} ports from {first} on; choose another {key}"
    taken: list[tuple[str, Listener]] = []
    for service, one in (*shared, *_own(settings)):
        for other, at in taken:
            if service != other and _overlap(one, at):
                return f"port {one.port} cannot be for both {other} and {service}: choose another for one of them"
        taken.append((service, one))
    return None


def taken_address(settings: Settings) -> str | None:
    """Returns at which of the shared addresses no node could listen now, and why; None if there is none."""
    for _, one in _shared(settings):
        why = _obstacle(one)
        if why is not None:
            return f"cannot listen at {one}: {why}. Choose another address with --host and --port"
    return None


def _shared(settings: Settings) -> list[tuple[str, Listener]]:
    """Returns the listeners that all processes have, each with what it is for."""
    services = (
        ("AMQP", settings.tcp_listeners),
        ("AMQP over TLS", settings.ssl_listeners),
        ("MQTT", settings.mqtt_listeners),
        ("MQTT over TLS", settings.mqtt_tls_listeners),
        ("MQTT over WebSocket", settings.web_mqtt_listeners),
        ("MQTT over WebSocket with TLS", settings.web_mqtt_tls_listeners),
        ("STOMP", settings.stomp_listeners),
        ("STOMP over TLS", settings.stomp_tls_listeners),
        ("STOMP over WebSocket", settings.web_stomp_listeners),
        ("STOMP over WebSocket with TLS", settings.web_stomp_tls_listeners),
        ("HTTP", settings.management_listeners),
        ("HTTPS", settings.management_tls_listeners),
    )
    return [(service, one) for service, listeners in services for one in listeners]


def _own(settings: Settings) -> list[tuple[str, Listener]]:
    """Returns the listeners that only one process has, each with what it is for."""
    found: list[tuple[str, Listener]] = []
    for number in range(1, settings.processes + 1):
        one = of_process(settings, number)
        http = (*one.management_listeners, *one.management_tls_listeners)[:1]
        found.append((f"other nodes to reach {one.node_name}", one.cluster_listener))
        found += [(f"HTTP of {one.node_name} (its cluster port and {OWN_HTTP_OFFSET})", each) for each in http]
        found += [(f"Prometheus of {one.node_name}", each) for each in one.prometheus_listeners if each.port]
    return found


def _overlap(one: Listener, other: Listener) -> bool:
    """Returns whether a client that connects to one address could be meant for the other. No error would tell: ports
    that processes share can be opened again."""
    return one.port == other.port and any(
        first == second or ((":" in first) == (":" in second) and not {first, second}.isdisjoint(EVERYWHERE))
        for first in _addresses(one.host)
        for second in _addresses(other.host)
    )


def _addresses(host: str) -> list[str]:
    if not host:
        return list(EVERYWHERE)
    try:
        return [str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except OSError:
        return [host]  # Whoever listens there will say so.


def _obstacle(listener: Listener) -> str | None:
    """Returns why a node could not listen at an address; None if nobody does, also nobody who would share it."""
    host = listener.host or "0.0.0.0"
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, listener.port))
            one.listen(1)
        except OSError as error:
            return "another process does" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
    return None


def _port(settings: Settings, number: int) -> int:
    return settings.cluster_listener.port + number - 1


def _address(settings: Settings, number: int) -> Address:
    return settings.cluster_host, _port(settings, number)


def _cookie_file(settings: Settings) -> str | None:
    if settings.cookie_file is not None or settings.cookie is not None:
        return settings.cookie_file
    return inherited(settings.data_dir, os.path.expanduser("~")) or os.path.join(settings.data_dir, FILE_NAME)


def _divided(value: float | None, count: int) -> float | None:
    return None if value is None else value / count


def _divided_bytes(value: int | None, count: int) -> int | None:
    return None if value is None else value // count


def _numbered(path: str, number: int) -> str:
    root, ending = os.path.splitext(path)
    return f"{root}-{number}{ending}"


def left_out(settings: Settings) -> list[str]:
    """Returns the nodes of this machine that have data, and are behind the last one that is started."""
    numbers = range(settings.processes + 1, PROCESSES_MAX + 1)
    return [node_name(settings, one) for one in numbers if _is_member(data_dir(settings, one))]


# -- Running them ------------------------------------------------------------------------------------------------


def node_at(settings: Settings, place: str) -> tuple[Settings, Callable[[], tuple[Address, ...]]]:
    """Returns the settings of the node with that place, such as `2/3`, and a function that tells whom it joins although
    its settings do not name them, see `members_beside`. Raises ValueError if it is no place.

    The configuration is read at each start of a node, and may by then name another number of processes. What counts is
    how many there are: otherwise a node could take another one for itself, or its part of the memory for larger.
    """
    number, slash, count = place.partition("/")
    is_place = slash and number.isdecimal() and count.isdecimal()
    if not is_place or not 1 <= int(number) <= int(count) <= PROCESSES_MAX:
        raise ValueError(f"{PROCESS} is for the processes of one machine, which set it; LEVERET_PROCESSES is how many")
    all_of_them = replace(settings, processes=int(count))
    return of_process(all_of_them, int(number)), partial(members_beside, all_of_them, int(number))


def members_beside(settings: Settings, number: int) -> tuple[Address, ...]:
    """Returns the addresses of nodes that belong to a cluster by now, for the first one, when it has no data: now, or
    after it has left the cluster or was reset. If it founded another one then, clients would find either behind the
    same ports. The others never found any."""
    others = range(2, settings.processes + 1) if number == 1 else ()
    return tuple(_address(settings, one) for one in others if _is_member(data_dir(settings, one)))


def _is_member(folder: str) -> bool:
    """Tells whether a data folder is that of a member of a cluster. A node that has left, or that was killed in its
    first start, has a folder and an identity, too: if the first node waited for those, none would found the cluster."""
    try:
        return has_log(os.listdir(os.path.join(folder, METADATA)))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # Perhaps another user's. Its node says so; a second cluster would say nothing.
        return True


def supervise(settings: Settings) -> int:
    """Runs all nodes until they stop. Returns the exit code."""
    refused = _refusal(settings)
    if refused is not None:
        print(f"leveret: {refused[0]}", file=sys.stderr)
        return refused[1]
    for name in left_out(settings):
        print(
            f"leveret: warning: {name} has data, and is not started: its queues are down, and the cluster counts its "
            f"vote. To do without it, start it once more, and then: leveretctl -n {name} leave_cluster",
            file=sys.stderr,
        )
    try:
        if _cookie_file(settings) == os.path.join(settings.data_dir, FILE_NAME):
            find_cookie(settings.data_dir)  # Made now, by one, instead of by each.
    except BadCookie as error:
        print(f"leveret: {error}", file=sys.stderr)
        return CONFIG
    return asyncio.run(Supervisor(settings).run())


def _refusal(settings: Settings) -> tuple[str, int] | None:
    """Makes the data folder of the first node. Returns why none can start, and the exit code that a single one would
    have for that reason; None if nothing is in the way."""
    wrong = problem(settings)
    if wrong is None and (no_folder := make_folder(settings.data_dir)) is not None:
        wrong = f"{no_folder}; {OTHER_FOLDER}"
    if wrong is not None:
        return wrong, CONFIG
    taken = taken_address(settings)
    return None if taken is None else (taken, UNAVAILABLE)


class Child:
    """One node's process."""

    def __init__(self, settings: Settings, number: int) -> None:
        self.name = node_name(settings, number)
        self.was_member = _is_member(data_dir(settings, number))  # Before all of them were started.
        self.place = f"{number}/{settings.processes}"
        self.process: asyncio.subprocess.Process | None = None
        self.ready = ""  # The line in which it told its ports.
        self.page = ""  # The line in which it told the address of the web page, which is the same for all.
        self.ended: int | None = None  # Its last exit code, if it has not been ready since.
        self.crashes = 0  # Since it was ready last.

    async def spawn(self) -> None:
        environ = {key: value for key, value in os.environ.items() if key != systemd.VARIABLE}
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            *sys.orig_argv[1:],
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            env=environ | {PROCESS: self.place},
            preexec_fn=_before_exec,
        )

    async def follow(self, on_changed: asyncio.Event) -> int:
        """Waits until the process ends, and returns its exit code."""
        assert self.process is not None and self.process.stdout is not None
        async for line in self.process.stdout:
            if line.startswith(b"ready"):
                self.ready = line.decode(errors="replace").strip()
                self.crashes = 0
                self.ended = None
                on_changed.set()
            elif line.startswith(b"page"):
                self.page = line.decode(errors="replace").strip()
                on_changed.set()
        return await self.process.wait()

    def send(self, number: signal.Signals) -> None:
        if self.process is not None and self.runs:
            self.process.send_signal(number)

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.returncode is None


def _before_exec() -> None:
    """Has the kernel stop a child whose parent has died, where it can. SIGHUP is a request to a node that runs; until
    that takes it, the signal would end the start."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _pause_s(crashes: int) -> float:
    """Returns how long a node that has ended so many times in a row is not started again."""
    return min(RESTART_S * 2.0 ** min(crashes - 1, DOUBLED_MAX), RESTART_S_MAX)


def _how(code: int) -> str:
    if code < 0:
        return f"was killed by signal {-code}"
    return f"ended with code {code}" if code else "was stopped"


def _say(text: str) -> None:
    try:
        print(f"leveret: {text}", file=sys.stderr, flush=True)
    except OSError:
        pass  # The terminal is gone, and whoever read there.


class Supervisor:
    """Starts the nodes, starts those again that crash, and stops all together."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.children = [Child(settings, number) for number in range(1, settings.processes + 1)]
        self.changed = asyncio.Event()  # A node has become ready, or has told something, or has ended.
        self.stopped = asyncio.Event()
        self.killing = False
        self.code = OK

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in ASKING:
            loop.add_signal_handler(number, self.stop)
        # A group ends with its terminal, as one node does. For others it is a request to open log files anew.
        is_at_terminal = self.settings.log_file is None and os.isatty(0)
        loop.add_signal_handler(signal.SIGHUP, self._on_terminal_gone if is_at_terminal else self._on_hangup)
        greeter = loop.create_task(self._greet())
        try:
            await asyncio.gather(*(self._attend(child) for child in self.children))
        finally:
            greeter.cancel()
        return self.code

    def stop(self) -> None:
        """Asks all to stop; asked a second time, or after a long while, kills them."""
        self.killing = self.stopped.is_set()
        if not self.killing:
            systemd.tell("STOPPING=1")
            asyncio.get_running_loop().call_later(STOP_S, self.stop)
        self.stopped.set()
        for child in self.children:
            self._end(child)

    def _end(self, child: Child) -> None:
        if self.killing and child.runs:
            _say(f"{child.name} has not stopped, and is killed")
            self._fail(SOFTWARE)
        child.send(signal.SIGKILL if self.killing else signal.SIGTERM)

    def _fail(self, code: int) -> None:
        self.code = self.code or code  # The first failure is the reason for those after it.

    def _on_terminal_gone(self) -> None:
        if not self.stopped.is_set():  # The shell tells it, then the kernel. A second request would kill the nodes.
            self.stop()

    def _on_hangup(self) -> None:
        for child in self.children:
            child.send(signal.SIGHUP)

    async def _attend(self, child: Child) -> None:
        while not self.stopped.is_set():
            code, how = await self._run(child)
            if self.stopped.is_set():
                self._on_stopped(child, code, how)
                break
            child.ended = code
            if code == OK or code in FINAL or not self._is_worth_another_start(child, code):
                # Stopped by an operator, or for good.
                _say(f"{child.name} {how}; all processes stop with it")
                self._fail(code if code >= 0 else SOFTWARE)
                self.stop()
                break
            self.changed.set()
            child.crashes += 1
            pause_s = _pause_s(child.crashes)
            _say(f"{child.name} {how}; it is started again in {pause_s:g} s")
            try:
                await asyncio.wait_for(self.stopped.wait(), pause_s)
            except TimeoutError:
                pass

    def _on_stopped(self, child: Child, code: int, how: str) -> None:
        """Says if a node that served, and was asked to stop, has crashed instead."""
        has_served = child.ready and child.ended is None
        if has_served and not self.killing and (code == SOFTWARE or (code < 0 and -code not in ASKING)):
            _say(f"{child.name} {how} when it was to stop")
            self._fail(SOFTWARE)

    async def _run(self, child: Child) -> tuple[int, str]:
        """Starts a node. Returns the exit code when it has ended, and how it ended."""
        try:
            await child.spawn()
        except (OSError, subprocess.SubprocessError) as error:
            # No process or no memory is left, for a moment, or Python is just being replaced by another version.
            reason = error.strerror if isinstance(error, OSError) else None
            return SOFTWARE, f"cannot be started: {reason or error}"
        if self.stopped.is_set():
            self._end(child)  # `stop` has not seen it: it was not there yet.
        code = await child.follow(self.changed)
        return code, _how(code)

    def _is_worth_another_start(self, child: Child, code: int) -> bool:
        """Returns whether a node that has ended is to be started again: it has served before, or others that belong to
        a cluster still run. Damaged data is repaired with what those others have, or not at all."""
        if child.ready and code != DATA_ERROR:
            return True
        were_whole = all(one.ready for one in self.children)
        return any((one.was_member or were_whole) and one.ended is None for one in self.children if one is not child)

    @property
    def _have_begun(self) -> bool:
        """True if every node is ready, or has failed while others serve."""
        return any(one.ready for one in self.children) and all(
            one.ready or one.ended is not None for one in self.children
        )

    async def _greet(self) -> None:
        await self._until(lambda: self._have_begun)
        ready = [one.ready.removeprefix("ready ") for one in self.children if one.ready]
        print(f"ready processes={len(ready)} {ready[0]}", flush=True)
        systemd.tell("READY=1")
        if self.settings.management_listeners or self.settings.management_tls_listeners:
            await self._until(lambda: any(one.page for one in self.children))
            print(next(one.page for one in self.children if one.page), flush=True)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()
