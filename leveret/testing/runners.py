"""Runs a broker under test: in a thread of this process (`Inside`), or in a process of its own (`Beside`).

A runner is made of settings, starts once, answers control calls, and ends in order or at once. A broker that is started
again has a new runner.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import logging
import os
import secrets
import selectors
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from typing import IO, TYPE_CHECKING, Any, Final

import uvloop

from leveret.links import link
from leveret.links.frame_types import CONTROL
from leveret.links.link import Identity
from leveret.node.sockets.cookie import find_cookie
from leveret.node.sockets.peer_socket import CallFailed, call
from leveret.node.system.data_folder import folder_lock
from leveret.testing.environment import make_server

if TYPE_CHECKING:
    from leveret.node.config.settings import Settings
    from leveret.node.server import Server

START_S: Final = 30.0
STOP_S: Final = 30.0
ANSWER_S: Final = 30.0
LOG_CHARACTERS_SHOWN: Final = 2_000

# Inside the test's process the broker is a library: it logs where the process has its logs, or nowhere.
logging.getLogger("leveret").addHandler(logging.NullHandler())


class NotRunning(Exception):
    """The broker does not run: it was stopped, was killed, or did not start. The text says which."""


class Runner(ABC):
    """One run of a broker."""

    ports: dict[str, int]

    @abstractmethod
    def start(self) -> None:
        """Starts the broker and waits until clients can connect. Raises NotRunning."""

    @abstractmethod
    def ask(self, request: dict[str, Any]) -> Any:
        """Returns the answer to a control call. Raises NotRunning."""

    @abstractmethod
    def stop(self) -> None: ...

    @abstractmethod
    def kill(self) -> None: ...


class Inside(Runner):
    """Runs the broker in a thread with an event loop of its own."""

    def __init__(self, settings: Settings, synced: bool) -> None:
        self.settings = settings
        self.synced = synced
        self.ports = {}
        self._began: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._server: Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._killed = False
        self._thread = threading.Thread(target=self._run, name=f"leveret {settings.node_name}", daemon=True)

    def start(self) -> None:
        self._thread.start()
        try:
            self._began.result(START_S)
        except TimeoutError:
            self.kill()
            raise NotRunning(f"the broker was not ready within {START_S:g} s") from None
        except Exception as error:
            self._thread.join()
            raise NotRunning(f"the broker did not start: {error}") from error

    def _run(self) -> None:
        try:
            os.makedirs(self.settings.data_dir, mode=0o750, exist_ok=True)
            with folder_lock(self.settings.data_dir), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            if self._began.done():
                raise
            self._began.set_exception(error)

    async def _serve(self) -> None:
        settings = self.settings
        cookie = find_cookie(settings.data_dir, settings.cookie_file, settings.cookie)
        server = make_server(settings, cookie, self.synced, shared=True)
        self._server, self._loop = server, asyncio.get_running_loop()
        starting = self._loop.create_task(server.start())
        try:
            await asyncio.wait([starting, server.stopped], return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                self.ports = dict(server.ports)
                self._began.set_result(None)
                await server.stopped
            if self._killed and server.node is not None:
                for client in list(server.node.clients):
                    client.transport.abort()
                await asyncio.sleep(0)  # Connections end before the stop could send connection.close.
        finally:
            self._server = None
            await server.stop()

    def ask(self, request: dict[str, Any]) -> Any:
        server, loop = self._server, self._loop
        if server is None or loop is None:
            raise NotRunning("the broker has stopped")
        asking = asyncio.run_coroutine_threadsafe(server.control.answer(json.dumps(request).encode()), loop)
        try:
            return json.loads(asking.result(ANSWER_S))
        except concurrent.futures.CancelledError:
            raise NotRunning("the broker stopped before it answered") from None
        except TimeoutError:
            raise NotRunning(f"the broker did not answer within {ANSWER_S:g} s") from None

    def stop(self) -> None:
        self._end(kill=False)

    def kill(self) -> None:
        """Ends the broker at once: what was not written is lost, and clients only lose their connections."""
        self._end(kill=True)

    def _end(self, kill: bool) -> None:
        server, loop = self._server, self._loop

        def end() -> None:
            assert server is not None
            if kill and server.node is not None:
                self._killed = True
                server.node.fatal = "killed by a test"  # From here on the node writes and sends nothing.
            server.request_stop()

        if server is not None and loop is not None:
            loop.call_soon_threadsafe(end)
        self._thread.join(STOP_S)
        if self._thread.is_alive():
            raise NotRunning(f"the broker did not stop within {STOP_S:g} s")


class Beside(Runner):
    """Runs the broker in a process, which ends when this one does."""

    def __init__(self, settings: Settings, synced: bool, command: list[str], log_file: str) -> None:
        self.settings = settings
        self.synced = synced
        self.command = [sys.executable, "-m", "leveret.testing.process", *command, *(["--sync"] if synced else [])]
        self.log_file = log_file
        self.ports = {}
        self._process: subprocess.Popen[str] | None = None
        self._caller: _Caller | None = None

    def start(self) -> None:
        # Variables of the shell are for other brokers. The log is appended to, so that it survives a restart.
        inherited = {name: text for name, text in os.environ.items() if not name.startswith(("LEVERET_", "RABBITMQ_"))}
        with open(self.log_file, "ab") as log:
            self._process = subprocess.Popen(
                self.command, env=inherited, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        line = read_line(self._process.stdout, START_S)
        if not line.startswith("ready "):
            self.kill()
            with open(self.log_file, encoding="utf-8", errors="replace") as log_text:
                raise NotRunning(f"the broker did not start:\n{log_text.read()[-LOG_CHARACTERS_SHOWN:]}")
        self.ports = {name: int(port) for name, _, port in (word.partition("=") for word in line.split()[1:])}
        settings = self.settings
        cookie = find_cookie(settings.data_dir, settings.cookie_file, settings.cookie)
        self._caller = _Caller((settings.cluster_listener.host, self.ports["cluster"]), cookie)

    def ask(self, request: dict[str, Any]) -> Any:
        if self._caller is None:
            raise NotRunning("the broker has stopped")
        try:
            return self._caller.ask(request)
        except CallFailed as error:
            raise NotRunning(f"the broker does not answer: {error}") from None

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, signal_: signal.Signals) -> None:
        process, self._process = self._process, None
        caller, self._caller = self._caller, None
        if caller is not None:
            caller.close()
        if process is None:
            return
        process.send_signal(signal_)
        try:
            process.communicate(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise NotRunning(f"the broker did not stop within {STOP_S:g} s") from None


class _Caller:
    """Makes control calls in a thread of its own: the caller may be in an event loop already."""

    def __init__(self, address: tuple[str, int], cookie: bytes) -> None:
        self.address = address
        self.cookie = cookie
        self._me = Identity(f"testing-{os.getpid()}", secrets.token_bytes(link.UUID_BYTES))
        self._executor = concurrent.futures.ThreadPoolExecutor(1, "leveret asking")

    def ask(self, request: dict[str, Any]) -> Any:
        calling = call(self.address, CONTROL, json.dumps(request).encode(), ANSWER_S, self._me, self.cookie)
        return json.loads(self._executor.submit(asyncio.run, calling).result())

    def close(self) -> None:
        self._executor.shutdown()


def read_line(stream: IO[str], seconds: float) -> str:
    """Returns the next line; "" at the end of the stream or after `seconds`."""
    deadline = time.monotonic() + seconds
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(deadline - time.monotonic()):
                return ""
            data = os.read(stream.fileno(), 4096)
            if not data:
                return ""
            line += data
    return line.decode()
