"""Measures how long turns of the event loop are while something is done to very many queues or connections.

One turn serves everybody, so nobody gets an answer before the longest one is over. Operations are carried out one after
the other: first those of `ONE` at one node, then those of `THREE` at three nodes with mirrored queues. Before each, and
after it, the nodes come to rest; what a turn took in between is measured by the nodes themselves (`timed_node`), in
processor time of the loop's thread, so that other work of the machine hardly counts. That an operation has really
happened is checked by counting before and after; what did not is a problem of the run.

Each operation is a line of a *scene*, whose other lines it may need: they are carried out, too, but not reported.

What grows old does so at one moment: the node is stopped (SIGSTOP) until all has, and continues.

    python -m benchmarks.clusters.turns [--quick] [--only NAME ...] [--queues 10000] [--connections 2000]
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.client
import json
import os
import selectors
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.clusters.timed_node import BOUNDS_MS, LONG_MS, TimedLeveret, Turns
from benchmarks.ruler import calls
from benchmarks.ruler.brokers import cluster, raise_file_limit
from benchmarks.ruler.calls import HOST
from benchmarks.ruler.calls import Connection as Guest
from benchmarks.ruler.load import SELECT_S
from benchmarks.ruler.workloads import PREFIX
from benchmarks.single.compare import fill
from leveret.client import amqp
from leveret.client.address import Address
from leveret.client.amqp import BrokerError
from leveret.client.connection import Connection

PART: Final = "turns"
ONE: Final = {
    "nothing": "nothing but the questions of the benchmark",
    "import": "definitions with the queues are imported",
    "import-again": "the same definitions once more",
    "list-http": "`GET /api/queues`, all at once",
    "list-paged": "`GET /api/queues`, page by page",
    "list-control": "`leveretctl list_queues`",
    "export": "`GET /api/definitions`",
    "data": "`GET /api/data/VHOST/queues`",
    "policy-set": "a policy is set for all queues",
    "policy-cleared": "the policy is cleared",
    "x-expires": "`x-expires` of all queues ends",
    "fanout": "one publish to all queues, by a fanout exchange",
    "message-ttl": "the only message of each queue grows old",
    "topic": "one publish to all queues, by a topic exchange",
    "policy-ttl": "a policy gives them a `message-ttl` of a millisecond",
    "open": "the connections are opened, many at a time",
    "close-all": "`leveretctl close_all_connections`",
    "user-deleted": "the user of all connections is deleted",
    "gone": "the clients go without a word",
    "closed": "the clients close their connections",
    "vhost-deleted": "the vhost of all connections and queues is deleted",
    "dead-letter": "a policy's `message-ttl` ends for all messages of a queue, which are dead-lettered",
}
THREE: Final = {
    "mirrored-import": "three nodes: definitions with mirrored queues are imported",
    "mirrored-vhost-deleted": "three nodes: their vhost is deleted",
    "ha-set": "three nodes: a policy gives queues mirrors",
    "drain": "three nodes: one is drained, which leads a third",
    "revive": "three nodes: it is revived",
    "rebalance": "three nodes: masters are rebalanced, so that it leads a third again",
    "killed": "three nodes: one is killed with -9, which leads a third",
    "start": "three nodes: it is started again, until it serves clients",
    "started": "three nodes: it has started, and the others",
    "ha-cleared": "three nodes: the policy is cleared",
}
ABOUT: Final = ONE | THREE
NODES: Final = 3
AT_ONCE: Final = 64  # Connections that are being opened.
PAGE: Final = 500
PATIENCE_S: Final = 600.0
POLL_S: Final = 0.2
REST_S, QUICK_REST_S = 0.25, 0.05
RESTS: Final = 2
REST_SHARE: Final = 0.25  # Of a processor: who takes less does nothing but answer the benchmark.
NOTHING_S, QUICK_NOTHING_S = 2.0, 0.1
OLD_S, QUICK_OLD_S = 30.0, 3.0  # Old enough to expire; all queues are made in less.
MIRRORED: Final = {"ha-mode": "all"}
EXCHANGES: Final = {kind: f"{PREFIX}.{kind}" for kind in ("fanout", "topic")}
USER: Final = f"{PREFIX}.user"
SOURCE, TARGET = f"{PREFIX}.source", f"{PREFIX}.target"

Row = dict[str, Any]


class Amounts(NamedTuple):
    queues: int
    connections: int
    messages: int


FULL, QUICK = Amounts(10_000, 2_000, 100_000), Amounts(200, 40, 500)


class Crowd(threading.Thread):
    """Clients that do nothing but to agree when the broker closes their connections. Ends when all are closed."""

    def __init__(self, clients: Sequence[Connection]) -> None:
        super().__init__(name="crowd")
        self.clients = clients
        self.told = 0
        self.leaving = threading.Event()

    def run(self) -> None:
        with contextlib.closing(selectors.DefaultSelector()) as selector:
            for client in self.clients:
                selector.register(client.socket, selectors.EVENT_READ, client)
            while selector.get_map() and not self.leaving.is_set():
                for key, _ in selector.select(SELECT_S):
                    if not self._goes_on(key.data):
                        selector.unregister(key.fileobj)

    def _goes_on(self, client: Connection) -> bool:
        try:
            kind, payload = client.read_frame()
            if kind == amqp.METHOD and amqp.METHOD_ID.unpack_from(payload) == amqp.CONNECTION_CLOSE:
                self.told += 1
                client.socket.sendall(amqp.method(amqp.CONNECTION_CLOSE_OK, channel=0))
        except (OSError, EOFError):
            return False
        return True

    def leave(self) -> None:
        self.leaving.set()
        self.join()


class Bench:
    """The operations, at nodes that it starts. Results are in `found`, by the name of the operation."""

    def __init__(
        self, names: Sequence[str], amounts: Amounts, quick: bool, data: Path | None, tell: Callable[[str], None]
    ) -> None:
        self.names, self.amounts, self.data, self.tell = names, amounts, data, tell
        self.rest_s = QUICK_REST_S if quick else REST_S
        self.nothing_s = QUICK_NOTHING_S if quick else NOTHING_S
        self.old_s = QUICK_OLD_S if quick else OLD_S
        self.nodes: list[TimedLeveret] = []
        self.found: dict[str, Row] = {}
        self.problems: list[str] = []

    def run(self) -> None:
        self._run(1, {
            self._nothing: ("nothing",),
            self._queues: tuple(ONE)[1:10],
            self._expiry: ("x-expires",),
            self._messages: ("fanout", "message-ttl", "topic", "policy-ttl"),
            self._connections: ("open", "close-all", "user-deleted", "gone", "closed"),
            self._vhost: ("vhost-deleted",),
            self._dead_letters: ("dead-letter",),
        })  # fmt: skip
        self._run(NODES, {self._mirrored: tuple(THREE)[:2], self._policy: tuple(THREE)[2:]})

    def _run(self, size: int, scenes: dict[Callable[[], None], tuple[str, ...]]) -> None:
        chosen = {scene: names for scene, names in scenes.items() if not set(names).isdisjoint(self.names)}
        if not chosen:
            return
        self.tell(f"starting leveret, nodes: {size}")
        with cluster(TimedLeveret, size, self.data) as self.nodes:
            for scene, names in chosen.items():
                try:
                    scene()
                except (OSError, EOFError, BrokerError, http.client.HTTPException) as error:
                    self._problem(f"{', '.join(names)}: {error!r}")
                    self.tell(self.nodes[0].last_words())

    def _problem(self, text: str) -> None:
        self.problems.append(f"{PART}: {text}")
        self.tell(f"PROBLEM {self.problems[-1]}")

    # -- Measuring ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _measured(self, name: str) -> Iterator[None]:
        """Measures the turns of what is done in its body, and of what the nodes then do by themselves."""
        self._come_to_rest()
        for node in self._running():
            node.turns(anew=True)
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        self._come_to_rest()
        turns = Turns()
        for node in self._running():
            turns.join(node.turns())
        self._note(name, seconds, turns)

    def _note(self, name: str, seconds: float, turns: Turns) -> None:
        row = {"seconds": seconds, "long": turns.long} | vars(turns) | self.amounts._asdict()
        self.tell(
            f"{name}: {seconds:.1f} s, longest {turns.longest_ms:.1f} ms, over {LONG_MS} ms: {turns.long}"
            + (f"; it was in {turns.was_in}" if turns.long else "")
        )
        if name in self.names:
            self.found[name] = row

    def _running(self) -> list[TimedLeveret]:
        return [node for node in self.nodes if node.process is not None]

    def _come_to_rest(self) -> None:
        """Waits until no node does more than to answer."""
        until, rests = time.monotonic() + PATIENCE_S, 0
        before, at = self._worked_ms(), time.monotonic()
        while rests < RESTS:
            if at > until:
                raise BrokerError(f"the nodes did not come to rest within {PATIENCE_S} s")
            time.sleep(self.rest_s)
            now, was, at = self._worked_ms(), at, time.monotonic()
            worked_ms = max(one - other for one, other in zip(now, before, strict=True))
            rests = rests + 1 if worked_ms < (at - was) * 1000 * REST_SHARE else 0
            before = now

    def _worked_ms(self) -> list[float]:
        return [node.turns().worked_ms for node in self._running()]

    def _await(self, vhost: str, **wanted: int) -> None:
        """Waits until the first node counts so many."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            counts = self._tally(vhost)
            if all(counts[name] == count for name, count in wanted.items()):
                return
            time.sleep(POLL_S)
        raise BrokerError(f"there should be {wanted}, there are {counts}")

    def _tally(self, vhost: str) -> Any:
        return self.nodes[0].control("tally", vhost=vhost)

    def _expect(self, what: str, count: int, wanted: int) -> None:
        if count != wanted:
            self._problem(f"{what}: {count} instead of {wanted}")

    # -- Means ----------------------------------------------------------------------------------------------------

    def _ask(self, method: str, path: str, body: Any = None, node: int = 0) -> Any:
        connection = http.client.HTTPConnection(HOST, self.nodes[node].http_port, timeout=PATIENCE_S)
        login = "Basic " + base64.b64encode(b"guest:guest").decode()
        headers = {"authorization": login, "content-type": "application/json"}
        with contextlib.closing(connection):
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read()
        if response.status >= 300:
            raise BrokerError(f"{method} {path}: {response.status} {text[:200]!r}")
        return json.loads(text) if text else None

    def _carry_out(self, node: TimedLeveret, command: str, **arguments: Any) -> None:
        """Carries out a command that may take long, as leveretctl does."""
        ticket = f"{PREFIX}.{command}.{time.monotonic_ns()}"
        node.control("begin", ticket=ticket, command=command, arguments=arguments)
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            answer = node.control("outcome", ticket=ticket)["answer"]
            if answer is not None:
                if "error" in answer:
                    raise BrokerError(f"{command}: {answer['error']['text']}")
                return
            time.sleep(POLL_S)
        raise BrokerError(f"{command} took more than {PATIENCE_S} s")

    @contextlib.contextmanager
    def _new_vhost(self, name: str) -> Iterator[str]:
        vhost = f"{PREFIX}.{name}"
        self._ask("PUT", f"/api/vhosts/{vhost}")
        try:
            yield vhost
        finally:
            with contextlib.suppress(OSError, BrokerError):  # Its deletion may have been an operation.
                self._ask("DELETE", f"/api/vhosts/{vhost}")

    def _definitions(self, vhost: str, arguments: amqp.Table | None = None, bound: bool = False) -> dict[str, Any]:
        """Returns definitions with the queues, bound to two exchanges if so wanted."""
        common = {"vhost": vhost, "durable": True, "auto_delete": False}
        names = [f"{PREFIX}.{number:05}" for number in range(self.amounts.queues)]
        found: dict[str, Any] = {"queues": [{**common, "name": name, "arguments": arguments or {}} for name in names]}
        if bound:
            binding = {"vhost": vhost, "destination_type": "queue", "routing_key": "all", "arguments": {}}
            found["exchanges"] = [
                {**common, "name": exchange, "type": kind, "internal": False, "arguments": {}}
                for kind, exchange in EXCHANGES.items()
            ]
            found["bindings"] = [
                {**binding, "source": exchange, "destination": name}
                for exchange in EXCHANGES.values()
                for name in names
            ]
        return found

    def _load(self, definitions: dict[str, Any], vhost: str) -> None:
        self._ask("POST", "/api/definitions", definitions)
        self._expect(f"queues imported to {vhost}", self._tally(vhost)["queues"], self.amounts.queues)

    def _set_policy(self, vhost: str, definition: dict[str, Any], pattern: str = "") -> None:
        rest = {"name": "turns", "pattern": pattern, "priority": 0, "apply_to": "queues", "operator": False}
        self.nodes[0].control("set_policy", vhost=vhost, definition=definition, **rest)

    def _clear_policy(self, vhost: str) -> None:
        self.nodes[0].control("clear_policy", vhost=vhost, name="turns", operator=False)

    @contextlib.contextmanager
    def _clients(self, user: str = "guest", vhost: str = "/") -> Iterator[list[Connection]]:
        """Opens the connections."""
        address, count = Address(HOST, self.nodes[0].port, user, "guest", vhost), self.amounts.connections
        with contextlib.ExitStack() as opened:
            with ThreadPoolExecutor(AT_ONCE) as threads:
                opening = [threads.submit(Connection, address, "crowd") for _ in range(count)]
            clients = [opened.enter_context(one.result()) for one in opening]
            self._expect("connections", self._tally(vhost)["connections"], count)
            yield clients

    @contextlib.contextmanager
    def _closing(self, clients: Sequence[Connection]) -> Iterator[None]:
        """Has the clients answer, and checks in the end that the broker has closed all of their connections."""
        crowd = Crowd(clients)
        crowd.start()
        try:
            yield
            crowd.join(PATIENCE_S)
        finally:
            crowd.leave()
        self._expect("connections that were closed", crowd.told, len(clients))

    def _stand_still(self) -> None:
        """Stops the node until all of an age of `old_s` has expired."""
        os.kill(self.nodes[0].pid(), signal.SIGSTOP)
        try:
            time.sleep(self.old_s)
        finally:
            os.kill(self.nodes[0].pid(), signal.SIGCONT)

    # -- One node -------------------------------------------------------------------------------------------------

    def _nothing(self) -> None:
        with self._measured("nothing"):
            until = time.monotonic() + self.nothing_s
            while time.monotonic() < until:
                self._tally("/")
                time.sleep(POLL_S)

    def _queues(self) -> None:
        queues = self.amounts.queues
        with self._new_vhost("queues") as vhost:
            definitions = self._definitions(vhost)
            with self._measured("import"):
                self._load(definitions, vhost)
            with self._measured("import-again"):
                self._load(definitions, vhost)
            with self._measured("list-http"):
                self._expect("queues listed", len(self._ask("GET", f"/api/queues/{vhost}")), queues)
            with self._measured("list-paged"):
                self._expect("queues on pages", sum(map(len, self._pages(vhost))), queues)
            with self._measured("list-control"):
                self._expect("rows", sum(map(len, self._listed(vhost))), queues)
            with self._measured("export"):
                exported = self._ask("GET", "/api/definitions")["queues"]
                self._expect("queues exported", len(exported), queues)
            with self._measured("data"):
                self._expect("queues as data", len(self._ask("GET", f"/api/data/{vhost}/queues")), queues)
            self._expect("queues with a limit", self._tally(vhost)["limited"], 0)
            with self._measured("policy-set"):
                self._set_policy(vhost, {"max-length": 1_000})
                self._await(vhost, limited=queues)
            with self._measured("policy-cleared"):
                self._clear_policy(vhost)
                self._await(vhost, limited=0)

    def _pages(self, vhost: str) -> Iterator[list[Any]]:
        number = pages = 1
        while number <= pages:
            answer = self._ask("GET", f"/api/queues/{vhost}?page={number}&page_size={PAGE}")
            pages = answer["page_count"]
            number += 1
            yield answer["items"]

    def _listed(self, vhost: str) -> Iterator[list[Any]]:
        after, is_first = None, True
        while is_first or after is not None:
            answer = self.nodes[0].control("list_queues", vhost=vhost, columns=["name", "messages"], after=after)
            after, is_first = answer["next"], False
            yield answer["rows"]

    def _expiry(self) -> None:
        with self._new_vhost("expiry") as vhost:
            self._load(self._definitions(vhost, {"x-expires": round(self.old_s * 1000)}), vhost)
            with self._measured("x-expires"):
                self._expect("queues that can expire", self._tally(vhost)["queues"], self.amounts.queues)
                self._stand_still()
                self._await(vhost, queues=0)

    def _messages(self) -> None:
        queues = self.amounts.queues
        with self._new_vhost("messages") as vhost:
            self._load(self._definitions(vhost, bound=True), vhost)
            with self._measured("fanout"):
                self._publish(vhost, EXCHANGES["fanout"], round(self.old_s * 1000))
            with self._measured("message-ttl"):
                self._expect("messages that can expire", self._tally(vhost)["messages"], queues)
                self._stand_still()
                self._await(vhost, messages=0)
            with self._measured("topic"):
                self._publish(vhost, EXCHANGES["topic"])
            with self._measured("policy-ttl"):
                self._set_policy(vhost, {"message-ttl": 1})
                self._await(vhost, messages=0)

    def _publish(self, vhost: str, exchange: str, ms: int | None = None) -> None:
        """Publishes a message, which expires after so many milliseconds, and waits until all queues have it."""
        blob = calls.publish(exchange, "all", b"x", persistent=True) if ms is None else _aging(exchange, "all", ms)
        with Connection(Address(HOST, self.nodes[0].port, "guest", "guest", vhost), "turns") as publisher:
            publisher.socket.sendall(blob)
            self._await(vhost, messages=self.amounts.queues)

    def _connections(self) -> None:
        with contextlib.ExitStack() as opened:
            with self._measured("open"):
                clients = opened.enter_context(self._clients())
            with self._closing(clients), self._measured("close-all"):
                self._carry_out(self.nodes[0], "close_connections", reason="turns")
                self._await("/", connections=0)
        self._ask("PUT", f"/api/users/{USER}", {"password": "guest", "tags": ""})
        self._ask("PUT", f"/api/permissions/%2F/{USER}", {"configure": ".*", "write": ".*", "read": ".*"})
        with self._clients(USER) as clients, self._closing(clients), self._measured("user-deleted"):
            self._ask("DELETE", f"/api/users/{USER}")
            self._await("/", connections=0)
        with self._clients() as clients, self._measured("gone"):
            for client in clients:
                client.close()
            self._await("/", connections=0)
        with self._clients() as clients, self._measured("closed"):
            for client in clients:
                client.socket.sendall(amqp.method(amqp.CONNECTION_CLOSE, b"\0\xc8\0" + bytes(4), channel=0))
            for client in clients:
                client.expect(amqp.CONNECTION_CLOSE_OK)
            self._await("/", connections=0)

    def _vhost(self) -> None:
        with self._new_vhost("vhost") as vhost:
            self._load(self._definitions(vhost), vhost)
            with self._clients(vhost=vhost) as clients, self._closing(clients), self._measured("vhost-deleted"):
                self._ask("DELETE", f"/api/vhosts/{vhost}")
                self._await(vhost, connections=0, queues=0)

    def _dead_letters(self) -> None:
        port, messages = self.nodes[0].port, self.amounts.messages
        with Guest(port) as admin:
            admin.declare_queue(SOURCE)
            admin.declare_queue(TARGET)
            sent = fill(port, SOURCE, messages).sent
            self._expect("messages that can be dead-lettered", admin.count_messages(SOURCE), sent)
            with self._measured("dead-letter"):
                routing = {"dead-letter-exchange": "", "dead-letter-routing-key": TARGET}
                self._set_policy("/", {"message-ttl": 1, **routing}, f"^{SOURCE}$")
                until = time.monotonic() + PATIENCE_S
                while admin.count_messages(TARGET) < sent and time.monotonic() < until:
                    time.sleep(POLL_S)
            self._expect("messages dead-lettered", admin.count_messages(TARGET), sent)
            self._expect("messages left", admin.count_messages(SOURCE), 0)
            admin.delete_queue(SOURCE)
            admin.delete_queue(TARGET)
        self._clear_policy("/")

    # -- Three nodes ----------------------------------------------------------------------------------------------

    def _mirrored(self) -> None:
        queues = self.amounts.queues
        with self._new_vhost("mirrored") as vhost:
            self._set_policy(vhost, MIRRORED)
            with self._measured("mirrored-import"):
                self._load(self._definitions(vhost), vhost)
                self._await(vhost, copies=NODES * queues)
            with self._measured("mirrored-vhost-deleted"):
                self._ask("DELETE", f"/api/vhosts/{vhost}")
                self._await(vhost, queues=0)
            for node in self.nodes:
                self._expect(f"queues left at {node.node}", node.control("tally", vhost=vhost)["queues"], 0)

    def _policy(self) -> None:
        queues = self.amounts.queues
        first, _, last = self.nodes
        with self._new_vhost("policy") as vhost:
            self._load_evenly(vhost)
            with self._measured("ha-set"):
                self._set_policy(vhost, MIRRORED)
                self._await(vhost, copies=NODES * queues)
            with self._measured("drain"):
                self._carry_out(first, "drain")
            self._expect("masters at the drained node", self._masters(vhost, first), 0)
            with self._measured("revive"):
                self._carry_out(first, "revive")
                Guest(first.port).close()
            with self._measured("rebalance"):
                self._carry_out(first, "rebalance", moves_max=queues)
            counts = [self._masters(vhost, node) for node in self.nodes]
            if max(counts) > 1.1 * queues / NODES + 1:  # A rebalance leaves that much.
                self._problem(f"masters of the nodes: {counts}")
            with self._measured("killed"):
                last.strike()
                last.bury()
                until = time.monotonic() + PATIENCE_S
                while self._masters(vhost, last) and time.monotonic() < until:
                    time.sleep(POLL_S)
                self._expect("masters of a lost node", self._masters(vhost, last), 0)
            with self._measured("started"):
                self._note("start", last.start(), last.turns(anew=True))
                self._await(vhost, copies=NODES * queues)
            self._expect("queues of a node that was lost", last.control("tally", vhost=vhost)["queues"], queues)
            with self._measured("ha-cleared"):
                self._clear_policy(vhost)
                self._await(vhost, copies=queues)

    def _load_evenly(self, vhost: str) -> None:
        """Imports the queues without mirrors, at each node those of which it is to be the master."""
        queues = self._definitions(vhost)["queues"]
        for number, node in enumerate(self.nodes):
            share = queues[number::NODES]
            self._ask("POST", "/api/definitions", {"queues": share}, number)
            self._await(vhost, queues=sum(len(queues[each::NODES]) for each in range(number + 1)))
            self._expect(f"masters at {node.node}", self._masters(vhost, node), len(share))
        self._expect("copies", self._tally(vhost)["copies"], self.amounts.queues)

    def _masters(self, vhost: str, node: TimedLeveret) -> int:
        count: int = self._tally(vhost)["masters"].get(node.node, 0)
        return count


def _aging(exchange: str, key: str, ms: int) -> bytes:
    """Returns the frames of a persistent message that expires."""
    routing = b"\0\0" + amqp.short(exchange) + amqp.short(key) + b"\0"
    properties = b"\x11\x00" + b"\2" + amqp.short(str(ms))  # Delivery mode and expiration.
    header = struct.pack(">HHQ", 60, 0, 1) + properties
    frames = (amqp.method(amqp.BASIC_PUBLISH, routing), amqp.frame(amqp.HEADER, header), amqp.frame(amqp.BODY, b"x"))
    return b"".join(frames)


# -- Showing --------------------------------------------------------------------------------------------------------

SHOWN_MS: Final = (10, 20, 50, 100)  # Bounds of the columns; turns up to the first are not shown.


def table(found: dict[str, Row]) -> str:
    """Returns a table of the operations, and of how many of their turns took how long."""
    if not found:
        return ""
    head = ["operation", "s", "longest turn, ms", f"turns over {LONG_MS} ms"]
    head += [f"{low} to {high}" for low, high in pairwise(SHOWN_MS)] + [f"over {SHOWN_MS[-1]}"]
    lines = [head, ["---"] + ["---:"] * (len(head) - 1)]
    for name, about in ABOUT.items():
        if row := found.get(name):
            places = [BOUNDS_MS.index(ms) + 1 for ms in SHOWN_MS]
            ends = [*places[1:], len(row["counts"])]
            counts = [sum(row["counts"][at:end]) for at, end in zip(places, ends, strict=True)]
            figures = [f"{row['seconds']:.1f}", f"{row['longest_ms']:.0f}", str(row["long"]), *map(str, counts)]
            lines.append([f"**{name}**: {about}", *figures])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def section(found: dict[str, Row]) -> str:
    if not found:
        return ""
    amounts = next(iter(found.values()))
    title = f"{amounts['queues']:,} queues, {amounts['connections']:,} connections, {amounts['messages']:,} messages"
    return f"### Turns of the event loop, in processor time: {title}\n\n{table(found)}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clusters.turns", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=ABOUT, default=[*ABOUT], metavar="NAME", help=", ".join(ABOUT))
    parser.add_argument("--quick", action="store_true", help="small amounts: shows that it works, not how long")
    for name, count, quick in zip(Amounts._fields, FULL, QUICK, strict=True):
        parser.add_argument(f"--{name}", type=int, metavar="N", help=f"default: {count:,}, quick: {quick:,}")
    parser.add_argument("--data", type=Path, help="folder for the brokers' data (default: the system's temporary one)")
    options = parser.parse_args(arguments)
    usual = QUICK if options.quick else FULL
    amounts = Amounts(*(getattr(options, name) or count for name, count in zip(usual._fields, usual, strict=True)))
    raise_file_limit()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # The nodes are stopped then.
    bench = Bench(options.only, amounts, options.quick, options.data, tell)
    bench.run()
    print(section(bench.found))
    return 1 if bench.problems else 0


def tell(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
