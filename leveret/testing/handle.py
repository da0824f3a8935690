"""A broker under test, and a cluster of them, as tests see them."""

from __future__ import annotations

import asyncio
import atexit
import os
import secrets
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self
from urllib.parse import quote

from leveret.node.config.settings import DEFAULT_NODE_NAME
from leveret.testing.admin import Admin
from leveret.testing.faults import Faults
from leveret.testing.runners import Beside, Inside, NotRunning, Runner
from leveret.testing.settings import load_settings

__all__ = ["Broker", "Cluster", "NotRunning"]

HOST: Final = "127.0.0.1"
Where = Literal["inside", "beside"]


class _Closing:
    """Adds `with` and `async with` to `start` and `close`."""

    def start(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)


class Broker(_Closing):
    """One broker. It keeps its ports and its data over `stop`, `kill` and `start`; `close` deletes the data."""

    def __init__(
        self,
        *,
        where: Where = "inside",
        config: str = "",
        data: str | Path | None = None,
        sync: bool = False,
        name: str = DEFAULT_NODE_NAME,
        cookie: str | None = None,
    ) -> None:
        """`cookie`: the secret that the nodes of a cluster share. Raises ConfigError for a bad `config`."""
        if where not in ("inside", "beside"):
            raise ValueError(f"a broker is 'inside' or 'beside' the test's process, not {where!r}")
        self.where: Where = where
        self.sync = sync
        self.host = HOST
        self._temporary = tempfile.TemporaryDirectory(prefix="leveret-testing-")
        self.folder = Path(self._temporary.name)
        self.data = self.folder / "data" if data is None else Path(data)
        self._config_file = str(self.folder / "broker.conf") if config else None
        if self._config_file is not None:
            Path(self._config_file).write_text(config, encoding="utf-8")
        self.cookie_file = self.folder / "cookie"
        self.cookie_file.touch(mode=0o600)
        self.cookie_file.write_text(cookie or secrets.token_hex(), encoding="ascii")
        self._values = {
            "node_name": name,
            "data_dir": os.path.abspath(self.data),
            "cookie_file": str(self.cookie_file),
            "host": HOST,
            "port": "0",
            "cluster.port": "0",
        }
        self._runner: Runner | None = None
        try:
            self.settings = load_settings(self._values, self._config_file)
        except BaseException:
            self._temporary.cleanup()
            raise
        self.name = name
        self.user, self.password = self.settings.default_user, self.settings.default_pass
        self.admin = Admin(self)
        self.faults = Faults(self)

    def __repr__(self) -> str:
        return f"<leveret broker {self.name}, {self.url if self.is_running else 'stopped'}>"

    # -- Addresses -------------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """True after a start, until it is stopped or killed."""
        return self._runner is not None

    @property
    def ports(self) -> dict[str, int]:
        """The open ports by name: amqp, cluster; amqps, management and management_tls if `config` has such listeners.
        Raises NotRunning."""
        return self._running().ports

    @property
    def port(self) -> int:
        """The AMQP port; the same after a restart. Raises NotRunning before the first start."""
        port = int(self._values["port"])
        if not port:
            raise NotRunning("the broker has no port before it is started")
        return port

    @property
    def url(self) -> str:
        return self.url_of(self.settings.default_vhost)

    def url_of(self, vhost: str, user: str | None = None, password: str | None = None) -> str:
        """Returns the URL of another vhost, or for another user."""
        names = (user or self.user, password or self.password, vhost)
        shown_user, shown_password, shown_vhost = (quote(name, safe="") for name in names)
        return f"amqp://{shown_user}:{shown_password}@{self.host}:{self.port}/{shown_vhost}"

    @property
    def leveretctl(self) -> list[str]:
        """The options that make leveretctl talk to this broker. Raises NotRunning."""
        return ["--host", self.host, "--port", str(self.ports["cluster"]), "--cookie-file", str(self.cookie_file)]

    @property
    def log_file(self) -> Path:
        """The log of a broker beside the test. One inside logs to the Python logger `leveret`."""
        return self.folder / "broker.log"

    # -- Start and stop---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the broker and waits until clients can connect. Raises NotRunning if it cannot start."""
        if self._runner is not None:
            return
        self.settings = load_settings(self._values, self._config_file)
        runner: Runner
        if self.where == "inside":
            runner = Inside(self.settings, self.sync)
        else:
            command = [word for key, value in self._values.items() for word in ("--set", f"{key}={value}")]
            command += ["--config", self._config_file] if self._config_file is not None else []
            runner = Beside(self.settings, self.sync, command, str(self.log_file))
        runner.start()
        self._runner = runner
        self._values |= {"port": str(runner.ports["amqp"]), "cluster.port": str(runner.ports["cluster"])}
        if "management" in runner.ports:
            self._values["management_port"] = str(runner.ports["management"])
        atexit.register(self.close)  # A running thread would disturb the end of the interpreter.

    def join(self, member: Broker) -> None:
        """Makes the broker join that broker's cluster at its first start. `member` must be running."""
        self._values["join"] = f"{member.host}:{member.ports['cluster']}"

    def stop(self) -> None:
        """Stops the broker in order: clients get connection.close, and everything is written."""
        runner, self._runner = self._runner, None
        if runner is not None:
            atexit.unregister(self.close)
            runner.stop()

    def kill(self) -> None:
        """Ends the broker at once: clients only lose their connections. Confirmed messages are there after `start`."""
        runner, self._runner = self._runner, None
        if runner is not None:
            atexit.unregister(self.close)
            runner.kill()

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        """Stops the broker, and deletes its data unless `data` was given."""
        try:
            self.stop()
        finally:
            self._temporary.cleanup()

    def ask(self, request: dict[str, Any]) -> Any:
        """Makes a control call, as leveretctl does; see `Admin.call`. Raises NotRunning."""
        return self._running().ask(request)

    def _running(self) -> Runner:
        if self._runner is None:
            raise NotRunning(f"broker {self.name} is not running")
        return self._runner


class Cluster(_Closing):
    """A cluster: `brokers`, each with its own port, admin and faults."""

    def __init__(self, nodes: int, *, where: Where = "inside", config: str = "", sync: bool = False) -> None:
        if nodes < 1:
            raise ValueError(f"a cluster of {nodes} nodes")
        cookie = secrets.token_hex()
        self.brokers = [
            Broker(
                where=where,
                config=config,
                sync=sync,
                name=f"leveret{number}@localhost",
                cookie=cookie,
            )
            for number in range(1, nodes + 1)
        ]

    @property
    def urls(self) -> list[str]:
        """The URLs of all nodes, running or not."""
        return [broker.url for broker in self.brokers]

    @property
    def admin(self) -> Admin:
        """The admin of the first running node; what it sets holds for all. Raises NotRunning."""
        for broker in self.brokers:
            if broker.is_running:
                return broker.admin
        raise NotRunning("no broker of the cluster is running")

    def start(self) -> None:
        """Starts the first node, then all others at once, which join it."""
        first, *others = self.brokers
        first.start()
        for broker in others:
            broker.join(first)
        if others:
            with ThreadPoolExecutor(len(others)) as executor:
                list(executor.map(lambda broker: broker.start(), others))

    def stop(self) -> None:
        for broker in reversed(self.brokers):
            broker.stop()

    def close(self) -> None:
        for broker in reversed(self.brokers):
            broker.close()
