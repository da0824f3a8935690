"""A client that reads queues in bulk, and works with leases, over the nodes' management ports.

    with DataClient(["127.0.0.1:15672", "127.0.0.1:15673"], user="guest", password="guest") as client:
        [orders] = client.queues(["orders"])
        for sheet in client.read("orders", orders.first, orders.next - 1):
            ...

It is synchronous, needs only the standard library, and is for one thread at a time; give each thread a client of its
own. It keeps one connection to each node.

**Nodes.** A request may go to any of `servers`. A node that has no copy of a queue, or is not the master of a queue
whose leases are requested, answers 421 and names the nodes that are (`urls`); the client asks these, and asks them
first for that queue from then on. If any of `servers` uses https, only `servers` themselves are asked without TLS,
whatever an answer names: each request carries the password. If a node cannot be reached, or fails in the middle of an
answer, the client asks the next one: those that were named, then all servers, again until `patience_s` has passed.
Every request can be repeated: reading changes nothing, and requests for leases say what is to be true afterwards. The
exception is `lease_take`: if its answer is lost, the repetition takes more messages. Nothing is lost by that, because
the view that it returns has all leased messages.

**Errors.** `Refused`: a node refused, and another one would, too (no such queue, no permission, a bad argument).
`Unreachable`: no node that could answer was there in time. Both are `DataError`.
"""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from leveret.client.tls import default_context
from leveret.data.sheet import Sheet, decode

PORT: Final = 15672
TLS_PORT: Final = 15671
ANSWER_BYTES_MAX: Final = 1 << 30
REFERRALS_MAX: Final = 16
PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 1.0
READ_BYTES: Final = 4 << 20
CONNECT_S: Final = 3.0  # A node whose machine is off does not even refuse; the next one is asked instead.
NOT_FOUND: Final = 404
TRY_AGAIN: Final = (421, 429, 502, 503, 504)

Answer = TypeVar("Answer")


class DataError(Exception):
    """A request failed."""


class Unreachable(DataError):
    """No node that could answer was there in time. `was_answered`: a node was there, and said why it could not."""

    def __init__(self, text: str, was_answered: bool = False) -> None:
        super().__init__(text)
        self.was_answered = was_answered


class Refused(DataError):
    """A node refused the request. `status` is that of HTTP, `error` and `reason` are the texts of the answer."""

    def __init__(self, status: int, error: str, reason: str) -> None:
        super().__init__(f"{reason or error} ({status})")
        self.status = status
        self.error = error
        self.reason = reason


class MemberInfo(NamedTuple):
    """A node that holds a copy of a queue."""

    node: str
    url: str | None  # Its management port; None if unknown, for example because the node does not run.
    in_sync: bool


class LeaseView(NamedTuple):
    """A lease at the time of the answer."""

    queue: str
    name: str
    acked: int  # Places below are acknowledged.
    next: int  # The place that the next message gets.
    runs: tuple[tuple[int, int, int], ...]  # Leased messages: (place, first number, last number), by place.
    timeout_ms: int
    touched_ms: int  # When it was last used, in ms since 1970.
    owner: str = ""  # The only one who may take and acknowledge; "": everybody.


class QueueInfo(NamedTuple):
    """A queue at the time of the answer. For a stream, numbers are offsets."""

    name: str
    id: int
    type: str  # classic, quorum, stream
    durable: bool
    first: int  # The queue has no message with a lower number.
    next: int  # The first number that is not safe yet. Numbers below never change their meaning.
    messages: int  # Ready, unacknowledged and leased.
    bytes: int  # Of the messages' contents, approximately.
    master: str
    members: tuple[MemberInfo, ...]
    leases: tuple[LeaseView, ...]
    is_down: bool = False  # No node that has it runs: its numbers are not known, and are 0.


class DataClient:
    """Reads from the nodes of one cluster. `servers`: `host`, `host:port`, or URLs; `tls` is for https (default: the
    system's certificates). `timeout_s` limits the wait for one answer, `patience_s` the search for a node that gives
    it, and `first_patience_s` (default: the same) the search for a node that takes a connection, as long as none ever
    did."""

    def __init__(
        self,
        servers: str | Sequence[str],
        vhost: str = "/",
        user: str = "guest",
        password: str = "guest",
        *,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 30.0,
        patience_s: float = 30.0,
        first_patience_s: float | None = None,
    ) -> None:
        names = [servers] if isinstance(servers, str) else list(servers)
        self.servers = [_url(name, tls is not None) for name in names]
        if not self.servers:
            raise ValueError("no servers are given")
        self.vhost = vhost
        self.timeout_s = timeout_s
        self.patience_s = patience_s
        self.first_patience_s = patience_s if first_patience_s is None else min(first_patience_s, patience_s)
        self._was_connected = False
        self._tls = tls
        self._headers = {
            "Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode(),
            "User-Agent": "leveret-data",
        }
        self._connections: dict[str, HTTPConnection] = {}
        self._homes: dict[str, str] = {}  # By queue: the node that answered last.

    # -- Queues --------------------------------------------------------------------------------------------------

    def queues(self, names: Sequence[str] = (), pattern: str | None = None) -> list[QueueInfo]:
        """Returns the queues of these names (Refused if one does not exist), or those whose whole name matches the
        pattern (a regular expression), by name. Of nodes that are down, those that match are `is_down`, and a queue
        that was named is `Unreachable`."""
        query: list[tuple[str, str]] = [("name", name) for name in names]
        if pattern is not None:
            query.append(("pattern", pattern))
        found = self._ask("", "GET", f"/api/data/{_quoted(self.vhost)}/queues", query)
        return [_queue_info(one, self._may_ask) for one in found]

    def read(self, queue: str, first: int, last: int | None = None, bytes_max: int = READ_BYTES) -> Iterator[Sheet]:
        """Reads the messages `first`..`last` that the queue has, both included, in sheets of about `bytes_max`. None:
        up to the last safe one. If `last` is given and not safe yet, yields the safe ones, then raises DataError."""
        position = first
        while last is None or position <= last:
            sheet = self.read_sheet(queue, position, last, bytes_max)
            if sheet.count:
                yield sheet
            if sheet.next <= position:
                if last is None:
                    return
                raise DataError(f"queue '{queue}' ends at {position - 1}, and {last} was asked for")
            position = sheet.next

    def read_sheet(self, queue: str, first: int, last: int | None = None, bytes_max: int = READ_BYTES) -> Sheet:
        """Reads the first sheet of such a read. Continue at `sheet.next`; it is at most `first` if nothing is there."""
        query = [("first", str(first)), ("bytes", str(bytes_max))]
        if last is not None:
            query.append(("last", str(last)))
        path = f"/api/data/{_quoted(self.vhost)}/{_quoted(queue)}/range"
        return self._request(queue, "GET", path, query, None, decode)

    def numbers(self, queue: str, first: int, last: int) -> Iterator[list[tuple[int, int]]]:
        """Yields the stored messages of a range as ranges of numbers: all that `read` would return, except those that
        are only in memory, and without contents."""
        path = f"/api/data/{_quoted(self.vhost)}/{_quoted(queue)}/numbers"
        while first <= last:
            found = self._ask(queue, "GET", path, [("first", str(first)), ("last", str(last))])
            if found["ranges"]:
                yield [(int(low), int(high)) for low, high in found["ranges"]]
            if int(found["next"]) <= first:
                return  # No later message is safe.
            first = int(found["next"])

    def number_at(self, queue: str, ms: int) -> int:
        """Returns the number of the first message that arrived at that time (ms since 1970) or later, or `next`."""
        path = f"/api/data/{_quoted(self.vhost)}/{_quoted(queue)}/at"
        return int(self._ask(queue, "GET", path, [("ms", str(ms))])["number"])

    def wait(self, queue: str, beyond: int, seconds: float) -> int:
        """Waits until message `beyond` is safe, or for `seconds`. Returns the queue's `next`, which is higher than
        `beyond` if it is safe."""
        path = f"/api/data/{_quoted(self.vhost)}/{_quoted(queue)}/wait"
        query = [("beyond", str(beyond)), ("seconds", f"{seconds:.3f}")]
        return int(self._ask(queue, "GET", path, query, wait_s=seconds)["next"])

    def cluster_name(self) -> str | None:
        """Returns the name of the cluster, which clients know as well; None if the user may not ask for it."""
        try:
            return str(self._ask("", "GET", "/api/cluster-name")["name"])
        except Refused:
            return None

    # -- Leases --------------------------------------------------------------------------------------------------

    def leases(self, queue: str | None = None) -> list[LeaseView]:
        path = f"/api/leases/{_quoted(self.vhost)}" + (f"/{_quoted(queue)}" if queue is not None else "")
        return [_lease_view(one) for one in self._ask(queue or "", "GET", path)]

    def lease_open(
        self, queue: str, name: str, timeout_ms: int | None = None, owner: str = "", takeover: bool = False
    ) -> LeaseView:
        """Creates a lease, or renews the existing one. With an owner, nobody else may take or acknowledge from now on;
        Refused (423) if another one owns it, unless `takeover` is set."""
        given: dict[str, Any] = {} if timeout_ms is None else {"timeout_ms": timeout_ms}
        if owner:
            given |= {"owner": owner, "takeover": takeover}
        return self._lease(queue, name, "PUT", "", given)

    def lease_take(self, queue: str, name: str, count: int, bytes_max: int | None = None, owner: str = "") -> LeaseView:
        """Moves up to `count` ready messages into the lease."""
        given: dict[str, Any] = {"count": count} if bytes_max is None else {"count": count, "bytes": bytes_max}
        return self._lease(queue, name, "POST", "/take", given | ({"owner": owner} if owner else {}))

    def lease_ack(self, queue: str, name: str, through: int, owner: str = "") -> LeaseView:
        """Acknowledges all messages at places below `through`."""
        return self._lease(queue, name, "POST", "/ack", {"through": through} | ({"owner": owner} if owner else {}))

    def lease_release(self, queue: str, name: str) -> None:
        """Deletes the lease and requeues its messages. Refused (404) if there is none."""
        path = f"/api/leases/{_quoted(self.vhost)}/{_quoted(queue)}/{_quoted(name)}"
        self._request(queue, "DELETE", path, (), None, _ignore)

    def _lease(self, queue: str, name: str, method: str, action: str, given: Mapping[str, Any]) -> LeaseView:
        path = f"/api/leases/{_quoted(self.vhost)}/{_quoted(queue)}/{_quoted(name)}{action}"
        return _lease_view(self._ask(queue, method, path, (), given))

    # -- Jobs ----------------------------------------------------------------------------------------------------

    def report_job(self, name: str, result: Mapping[str, Any]) -> None:
        """Reports the state of a job to the broker, whose page shows it. See `management.api.jobs` for the fields."""
        self._request("", "PUT", f"/api/leveret/jobs/{_quoted(self.vhost)}/{_quoted(name)}", (), result, _ignore)

    # -- Asking --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        for url in list(self._connections):
            self._drop(url)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(
        self,
        queue: str,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]] = (),
        given: Mapping[str, Any] | None = None,
        wait_s: float = 0.0,
    ) -> Any:
        return self._request(queue, method, path, query, given, json.loads, wait_s)

    def _request(
        self,
        queue: str,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]],
        given: Mapping[str, Any] | None,
        read: Callable[[bytes], Answer],
        wait_s: float = 0.0,
    ) -> Answer:
        """Sends a request until a node answers it. Raises DataError."""
        target = path + ("?" + urlencode(query) if query else "")
        body = None if given is None else json.dumps(given).encode()
        began = time.monotonic()
        pause_s = PAUSE_S
        trouble: Exception | str = ""
        said = ""  # The last answer that was none: it explains more than that other nodes are not there.
        while True:
            todo = self._whom(queue)
            tried: set[str] = set()
            failure: Refused | None = None  # A status 500: this node would fail again, another one may not.
            may_change = False
            while todo:
                url = todo.pop(0)
                if url in tried:
                    continue
                tried.add(url)
                try:
                    status, data = self._call(url, method, target, body, wait_s)
                    if status < 300:
                        answer = read(data)
                        if queue:
                            self._homes[queue] = url
                        return answer
                except (OSError, HTTPException, ValueError) as error:
                    trouble, may_change = error, True
                    self._drop(url)
                    self._homes.pop(queue, None)
                    continue
                refusal = _refusal(status, data)
                said = f"{url} says: {refusal}"
                if status == 500:
                    failure = refusal
                    continue
                if status not in TRY_AGAIN:
                    raise refusal
                may_change = True
                if status == 421 and len(tried) < REFERRALS_MAX:
                    todo[:0] = filter(self._may_ask, _referrals(data))
            if failure is not None and not may_change:
                raise failure
            patience_s = self.patience_s + wait_s if self._was_connected else self.first_patience_s
            if time.monotonic() + pause_s > began + patience_s:
                # The text of an answer that is no HTTP may contain anything.
                why = "".join(one if one.isprintable() else repr(one)[1:-1] for one in said or str(trouble))
                raise Unreachable(f"nobody answered {method} {path}: {why}{_hint(why)}", said != "")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def _whom(self, queue: str) -> list[str]:
        """Returns the node that answered for this queue last, then all servers, those with a connection first."""
        home = self._homes.get(queue)
        known = sorted(self.servers, key=lambda url: url not in self._connections)
        return known if home is None else [home, *known]

    def _may_ask(self, url: str) -> bool:
        """Says whether the password may be sent to this URL."""
        is_plain = not any(server.startswith("https:") for server in self.servers)
        return is_plain or url.startswith("https:") or url in self.servers

    def _call(self, url: str, method: str, target: str, body: bytes | None, wait_s: float) -> tuple[int, bytes]:
        """Sends a request to one node. If the kept connection was closed meanwhile, sends it again over a new one."""
        kept = self._connections.get(url)
        if kept is not None:
            try:
                return self._exchange(kept, url, method, target, body, wait_s)
            except (ConnectionError, HTTPException):
                self._drop(url)
        parts = urlsplit(url)
        host = parts.hostname or ""
        if parts.scheme == "https":
            context = self._tls or default_context()
            fresh: HTTPConnection = HTTPSConnection(host, parts.port, timeout=self.timeout_s, context=context)
        else:
            fresh = HTTPConnection(host, parts.port, timeout=self.timeout_s)
        fresh.timeout = min(self.timeout_s, CONNECT_S)
        fresh.connect()
        self._connections[url] = fresh
        self._was_connected = True
        return self._exchange(fresh, url, method, target, body, wait_s)

    def _exchange(
        self, connection: HTTPConnection, url: str, method: str, target: str, body: bytes | None, wait_s: float
    ) -> tuple[int, bytes]:
        connection.timeout = self.timeout_s + wait_s
        if connection.sock is not None:
            connection.sock.settimeout(connection.timeout)
        headers = self._headers if body is None else {**self._headers, "Content-Type": "application/json"}
        connection.request(method, urlsplit(url).path.rstrip("/") + target, body, headers)
        response = connection.getresponse()
        return response.status, _read_all(response)

    def _drop(self, url: str) -> None:
        connection = self._connections.pop(url, None)
        if connection is not None:
            connection.close()


def _url(server: str, tls: bool) -> str:
    if "//" not in server:
        server = ("https://" if tls else "http://") + server
    parts = urlsplit(server)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{server!r} is no server: host, host:port, http://host:port or https://host:port is meant")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = parts.port or (PORT if parts.scheme == "http" else TLS_PORT)
    return f"{parts.scheme}://{host}:{port}{parts.path.rstrip('/')}"


def _read_all(response: HTTPResponse) -> bytes:
    if response.length is None:
        data = response.read(ANSWER_BYTES_MAX + 1)
        size = len(data)
    else:
        size = response.length
        data = response.read() if size <= ANSWER_BYTES_MAX else b""
    if size > ANSWER_BYTES_MAX:
        raise HTTPException(f"an answer of more than {ANSWER_BYTES_MAX} bytes")
    return data


def _hint(said: str) -> str:
    return " (that is a port for AMQP)" if said.startswith("AMQP") else ""


def _refusal(status: int, data: bytes) -> Refused:
    try:
        said = json.loads(data)
        return Refused(status, str(said["error"]), str(said.get("reason", "")))
    except (ValueError, TypeError, KeyError, AttributeError):  # Perhaps the page of a proxy.
        return Refused(status, "error", data[:200].decode("utf-8", "replace"))


def _referrals(data: bytes) -> list[str]:
    try:
        urls = json.loads(data).get("urls", [])
        return [_url(url, False) for url in urls[:REFERRALS_MAX] if isinstance(url, str)]
    except (ValueError, TypeError, AttributeError):
        return []


def _quoted(name: str) -> str:
    return quote(name, safe="")


def _ignore(data: bytes) -> None:
    return None


def _queue_info(one: Mapping[str, Any], may_ask: Callable[[str], bool]) -> QueueInfo:
    members = tuple(
        MemberInfo(each["node"], each["url"] if each["url"] and may_ask(each["url"]) else None, each["in_sync"])
        for each in one["members"]
    )
    leases = tuple(map(_lease_view, one["leases"]))
    first, following, messages, size = (one[name] or 0 for name in ("first", "next", "messages", "bytes"))
    return QueueInfo(
        one["name"], one["id"], one["type"], one["durable"], first, following, messages, size, one["master"], members,
        leases, one.get("state") == "down",
    )  # fmt: skip


def _lease_view(one: Mapping[str, Any]) -> LeaseView:
    runs = tuple((place, first, last) for place, first, last in one["runs"])
    return LeaseView(
        one["queue"], one["name"], one["acked"], one["next"], runs, one["timeout_ms"], one["touched_ms"],
        one.get("owner", ""),
    )  # fmt: skip
