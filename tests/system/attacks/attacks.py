"""The attacks: each a function of a target and of how often. They expect to be refused, and not how."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import resource
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

MEBIBYTE: Final = 1 << 20
PATIENCE_S: Final = 120.0
AT_ONCE: Final = 4
FORM: Final = "application/x-www-form-urlencoded"
JSON: Final = "application/json"


@dataclass(frozen=True)
class Target:
    port: int
    management_port: int
    stomp_port: int


Attack = Callable[[Target, int], None]


def basic(user: str | bytes) -> str:
    return "Basic " + base64.b64encode(user.encode() if isinstance(user, str) else user).decode()


USER: Final = basic("user:user")  # May publish and read in `/`, and has no tags.
MANAGER: Final = basic("manager:manager")  # The same, and may use the HTTP API.
MAKER: Final = basic("maker:maker")  # The same, and may set policies.


def ask(
    target: Target, method: str, path: str, body: bytes = b"", login: str | None = None, kind: str = JSON
) -> int | None:
    """The status; None if the node would not hear all of it."""
    connection = http.client.HTTPConnection("127.0.0.1", target.management_port, timeout=PATIENCE_S)
    headers = {"content-type": kind, **({} if login is None else {"authorization": login})}
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        response.read()
        return response.status
    except (ConnectionError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def at_once(work: Callable[[int], object], times: int, together: int = AT_ONCE) -> None:
    """Does the work that often, some of it beside each other."""
    numbers = iter(range(times))
    lock = threading.Lock()

    def run() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            work(number)

    threads = [threading.Thread(target=run) for _ in range(together)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# -- Without a login -----------------------------------------------------------------------------------------------


def login(target: Target, times: int) -> None:
    """Large bodies where a name and a password are expected."""
    for body in (b"username=" + b"\n" * (10 * MEBIBYTE - 9), b"a=b&" * (2 * MEBIBYTE), b"%0a" * (3 * MEBIBYTE)):
        at_once(lambda _, body=body: ask(target, "POST", "/api/login", body, kind=FORM), times)  # type: ignore[misc]


def names(target: Target, times: int) -> None:
    """Ever new names, as large as they may be, with newlines and with what a terminal obeys."""

    def one(number: int) -> None:
        name = f"{number}\n2026-01-01 00:00:00.000000+00:00 [info] <0.1.0> forged\x1b]0;owned\x07".encode()
        ask(target, "POST", "/api/login", b"username=" + name + b"%0a" * 5_000 + b"&password=x", kind=FORM)
        ask(target, "GET", "/api/whoami", login=basic(name + b"\n" * 10_000 + b":x"))

    at_once(one, 20 * times)


def passwords(target: Target, times: int) -> None:
    """Wrong ones for a name that exists, over HTTP, until the node is slow to answer; and for ever new names."""
    at_once(lambda number: ask(target, "GET", "/api/whoami", login=basic(f"nobody{number}:x")), 100 * times)
    at_once(lambda number: ask(target, "GET", "/api/whoami", login=basic(f"manager:{number}")), 10 + 4 * times)


def strangers(target: Target, times: int) -> None:
    """Wrong passwords over AMQP, with names of newlines."""
    properties = b"\0\0\0\0"

    def one(number: int) -> None:
        response = b"\0" + (b"manager" if number % 2 else b"\n\x1b[31m" * 500) + b"\0" + str(number).encode()
        start_ok = struct.pack(">HH", 10, 11) + properties + b"\5PLAIN" + struct.pack(">I", len(response)) + response
        frame = struct.pack(">BHI", 1, 0, len(start_ok) + 6) + start_ok + b"\5en_US\xce"
        address = ("127.0.0.1", target.port)
        with contextlib.suppress(ConnectionError), socket.create_connection(address, timeout=PATIENCE_S) as sock:
            sock.sendall(b"AMQP\0\0\x09\x01" + frame)
            while sock.recv(4096):
                pass

    at_once(one, 40 * times, 40)  # After a few wrong passwords, each waits until the handshake has taken too long.


def origins(target: Target, times: int) -> None:
    """Large bodies of foreign pages."""

    def one(_: int) -> None:
        with (
            contextlib.suppress(ConnectionError),
            socket.create_connection(("127.0.0.1", target.management_port), timeout=PATIENCE_S) as sock,
        ):
            sock.sendall(
                b"POST /api/definitions HTTP/1.1\r\nhost: node\r\norigin: http://evil.example\r\n"
                b"content-type: text/plain\r\ncontent-length: %d\r\n\r\n" % MEBIBYTE
            )
            sock.sendall(b"[" * MEBIBYTE)
            sock.recv(4096)

    at_once(one, 4 * times)


def silent(target: Target, times: int) -> None:
    """More connections that say nothing than there may be; others get in all the same."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for _ in range(min(times, 3)):
        socks = []
        try:
            for port in (target.port, target.management_port):
                for _ in range(1_100):
                    with contextlib.suppress(ConnectionError):
                        socks.append(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S))
            assert ask(target, "GET", "/api/whoami", login=MANAGER) == 200
            with socket.create_connection(("127.0.0.1", target.port), timeout=PATIENCE_S) as sock:
                sock.sendall(b"AMQP\0\0\x09\x01")
                assert sock.recv(1) == b"\x01"  # The greeting.
        finally:
            for one in socks:
                one.close()


def _stomp(target: Target, data: bytes) -> None:
    """Say this to the STOMP port, and hear the answer out."""
    address = ("127.0.0.1", target.stomp_port)
    with contextlib.suppress(ConnectionError), socket.create_connection(address, timeout=PATIENCE_S) as sock:
        sender = threading.Thread(target=_send_all, args=(sock, data))
        sender.start()
        sock.settimeout(1)
        with contextlib.suppress(TimeoutError):
            while sock.recv(65536):
                pass
        sock.shutdown(socket.SHUT_RDWR)
        sender.join()


def _send_all(sock: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):
        sock.sendall(data)


def frames_of_strangers(target: Target, times: int) -> None:
    """STOMP frames without a login: as large as they may be, of no command, with ever new names of newlines."""
    name = b"x\\n2026-01-01 [info] forged\x1b]0;owned\x07" * 150
    for data in (
        b"FOO\n" + b"a:b\n" * 60 + b"\n\0",
        b"CONNECT\nlogin:" + name + b"\npasscode:x\n\n\0",
        b"CONNECT\n" + b"a:" + b"\\c" * 4_000 + b"\n\n\0",
        b"CONNECT\ncontent-length:60000\n\n" + bytes(60_000) + b"\0",
        b"\n" * 100_000,
    ):
        at_once(lambda _, data=data: _stomp(target, data * (1 + 300_000 // len(data))), 2 * times)  # type: ignore[misc]


# -- With a login --------------------------------------------------------------------------------------------------


def documents(size: int) -> Iterable[bytes]:
    """JSON that takes long to read, of about that size."""
    yield b'{"a":[' + b"0," * (size // 2) + b"0]}"
    yield b'{"a":[' + b"1.5e3," * (size // 6) + b"0]}"
    yield b"[" * (size // 2) + b"]" * (size // 2)
    yield b'{"a":' * (size // 6) + b"0" + b"}" * (size // 6)
    yield b'{"a":[' + b'"",' * (size // 3) + b"0]}"
    yield b'{"a":"' + b"\\n" * (size // 2) + b'"}'
    yield b"{" + b",".join(b'"k%d":0' % number for number in range(size // 12)) + b',"z":0}'
    yield b"{" + b" " * size + b"}"
    yield b"[" + b",".join([b"[" * 60 + b"0," * 2_100 + b"0" + b"]" * 60] * (size // 4_400 + 1)) + b"]"


PATHS: Final = (
    ("PUT", "/api/leases/%2F/user/l"), ("POST", "/api/leases/%2F/none/l/take"), ("POST", "/api/leases/%2F/user/l/ack"),
    ("POST", "/api/exchanges/%2F/amq.default/publish"), ("POST", "/api/rebalance/queues"), ("POST", "/api/definitions"),
    ("PUT", "/api/queues/%2F/user"), ("PUT", "/api/leveret/jobs/%2F/j"), ("POST", "/api/queues/%2F/user/get"),
)  # fmt: skip


def bodies(target: Target, times: int) -> None:
    """JSON to whatever takes any: as large as the server takes at all, and as large as the route does."""
    for size in (9 * MEBIBYTE, 250 << 10, 15 << 10):
        for data in documents(size):
            paths = PATHS if size < MEBIBYTE else PATHS[:6]

            def one(number: int, data: bytes = data, paths: tuple[tuple[str, str], ...] = paths) -> None:
                method, path = paths[number % len(paths)]
                ask(target, method, path, data, (USER, MANAGER)[number % 2])

            at_once(one, len(paths) * times)


def imports(target: Target, times: int) -> None:
    """Large documents of an administrator, who may send such: no attack, but nobody is to notice it."""
    for data in documents(min(times, 9) * MEBIBYTE):
        ask(target, "POST", "/api/definitions", data, basic("guest:guest"))
    queues = [
        {"name": f"i{number}", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
        for number in range(500 * times)
    ]
    assert ask(target, "POST", "/api/definitions", json.dumps({"queues": queues}).encode(), basic("guest:guest")) == 204


def policies(target: Target, times: int) -> None:
    """Patterns that take long to search for, each within its bound; then names to search them in."""
    said: set[int | None] = set()
    for number in range(25 * times):
        policy = {"pattern": "(q+)+" * (8 + number % 8) + "$", "definition": {"max-length": 5}, "priority": number}
        said.add(ask(target, "PUT", f"/api/policies/%2F/slow{number}", json.dumps(policy).encode(), MAKER))
    assert said == {201, 400}  # The vhost's budget takes the first ones, and no more.
    for number in range(5 * times):
        ask(target, "PUT", f"/api/queues/%2F/{'q' * 240}{number}", b'{"durable": true}', MAKER)
        ask(target, "DELETE", f"/api/queues/%2F/{'q' * 240}{number}", login=MAKER)
    for number in range(25 * times):
        ask(target, "DELETE", f"/api/policies/%2F/slow{number}", login=MAKER)


def parameters(target: Target, times: int) -> None:
    """What rules the whole cluster, set by somebody who may set policies; and as much of the rest as goes in."""
    for name in ("internal_cluster_id", "cluster_name", "cluster_partition_handling", "node_labels:x"):
        body = json.dumps({"value": "x" * 1_000}).encode()
        assert ask(target, "PUT", f"/api/global-parameters/{name}", body, MAKER) in (400, 401)
        assert ask(target, "DELETE", f"/api/global-parameters/{name}", login=MAKER) in (400, 401, 404)
    for number in range(50 * times):
        body = json.dumps({"value": ["y" * 100] * 2_000}).encode()
        ask(target, "PUT", f"/api/global-parameters/mine{number}", body, MAKER)
        ask(target, "DELETE", f"/api/global-parameters/mine{number}", login=MAKER)


def messages(target: Target, times: int) -> None:
    """Large ones, by somebody who may publish them; to no queue, so that the node keeps none."""
    said = {"properties": {}, "routing_key": "none", "payload_encoding": "string"}
    for payload in ("x" * (9 * MEBIBYTE), '"\n' * MEBIBYTE, "\U0001f407" * 700_000):
        data = json.dumps({**said, "payload": payload}).encode()
        at_once(
            lambda _, data=data: ask(target, "POST", PATHS[3][1], data, MANAGER),  # type: ignore[misc]
            2 * times,
        )
    bad = json.dumps({**said, "payload": "!" * 9 * MEBIBYTE, "payload_encoding": "base64"}).encode()
    at_once(lambda _: ask(target, "POST", PATHS[3][1], bad, MANAGER), times)


def crowd(target: Target, times: int) -> None:
    """Very many large bodies that do not come to their end, to fill the memory."""
    socks: list[socket.socket] = []
    head = (
        "POST /api/exchanges/%2F/amq.default/publish HTTP/1.1\r\nhost: node\r\ncontent-type: application/json\r\n"
        f"authorization: {MANAGER}\r\ncontent-length: {9 * MEBIBYTE}\r\n\r\n"
    ).encode()
    try:
        for _ in range(10 * times):
            sock = socket.create_connection(("127.0.0.1", target.management_port), timeout=PATIENCE_S)
            socks.append(sock)
            with contextlib.suppress(ConnectionError):
                sock.sendall(head + b"x" * (8 * MEBIBYTE))
    finally:
        for sock in socks:
            sock.close()


def frames(target: Target, times: int) -> None:
    """STOMP frames of a user: very many headers, ever new ones, errors without end, transactions without one."""
    login = b"CONNECT\naccept-version:1.2\nlogin:user\npasscode:user\n\n\0"
    headers = b"".join(b"h%d:%d\n" % (number, number) for number in range(500))
    new = b"".join(
        b"SEND\ndestination:/exchange/amq.fanout/%d\nx%d:y\nreceipt:%d\n\n\0" % (n, n, n) for n in range(20_000)
    )
    for data in (
        (b"SEND\ndestination:/exchange/amq.fanout/k\n" + headers + b"\n\0") * 200,
        new,
        b"FOO\n\n\0" * 50_000,
        b"ACK\nid:T_1@@x@@1\n\n\0" * 20_000,
        b"BEGIN\ntransaction:t\n\n\0" + b"SEND\ntransaction:t\ndestination:/topic/a\n\nx\0" * 30_000,
        b"".join(b"SUBSCRIBE\nid:%d\ndestination:/topic/%d\n\n\0" % (n, n) for n in range(200)),
        b"".join(b"UNSUBSCRIBE\nid:%d\n\n\0" % n for n in range(20_000)),
    ):
        at_once(lambda _, data=data: _stomp(target, login + data + b"DISCONNECT\n\n\0"), 2 * times)  # type: ignore[misc]


ATTACKS: Final[dict[str, Attack]] = {
    attack.__name__: attack
    for attack in (
        login, names, passwords, strangers, origins, silent, bodies, imports, policies, parameters, messages, crowd,
        frames_of_strangers, frames,
    )
}  # fmt: skip
