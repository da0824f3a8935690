"""The pytest plugin: a real broker as a fixture.

    def test_orders(leveret_broker):
        connection = pika.BlockingConnection(pika.URLParameters(leveret_broker.url))

`leveret_broker` is one broker for the whole run (one for each worker of pytest-xdist), empty at the start of each test:
what a test declared or set is deleted after it, faults are cleared, and a broker that it stopped or killed is started
again. The URL stays the same, so that an application can be configured once. Connections stay open, since many suites
share one; their queues are deleted, and their consumers get basic.cancel. Only connections of kombu, and so of Celery,
are closed: kombu remembers for each connection what it has declared, would never declare it again, and opens a new
connection by itself.

`leveret_server` is the same broker without the cleaning, for fixtures of a wider scope than one test. For a broker of
its own a test calls `leveret.testing.broker()`.

    [tool.pytest.ini_options]
    leveret_scope = "module"                # a new one for each (session)
    leveret_where = "beside"                # in a process of its own; inside is the default
    leveret_config = ["heartbeat = 10"]     # lines as in rabbitmq.conf
    leveret_close = "all"                   # which connections a test's end closes; or "none", or "kombu"

or --leveret-scope and --leveret-where on the command line.

Every run of pytest imports this module, so it imports only pytest; the first test that uses a broker loads its code.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from leveret.testing.handle import Broker

SCOPES: Final = ("session", "package", "module", "class", "function")
PLACES: Final = ("inside", "beside")
CLOSED: Final = ("kombu", "all", "none")
KOMBU: Final = "py-amqp"  # The client property `product` of its connections.
LOG_CHARACTERS_SHOWN: Final = 8_000


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("leveret", "a real AMQP broker for tests")
    group.addoption("--leveret-scope", choices=SCOPES, help="how long a leveret_broker lives (session)")
    group.addoption("--leveret-where", choices=PLACES, help="a broker inside the process, or beside it (inside)")
    parser.addini("leveret_scope", "how long a leveret_broker lives: session, package, module, class or function")
    parser.addini("leveret_where", "a broker inside the test's process, or beside it")
    parser.addini("leveret_close", "connections that are closed after each test: kombu (its own), all or none")
    parser.addini("leveret_config", "lines of configuration for it, as in rabbitmq.conf", type="linelist")


def _chosen(config: pytest.Config, name: str, allowed: tuple[str, ...]) -> str:
    """Returns the choice of the command line, else of the ini-file, else the first of those allowed."""
    chosen = str(config.getoption(name, None) or config.getini(name) or allowed[0])
    if chosen not in allowed:
        raise pytest.UsageError(f"{name} must be one of {', '.join(allowed)}, not {chosen!r}")
    return chosen


def _scope(fixture_name: str, config: pytest.Config) -> Any:
    return _chosen(config, "leveret_scope", SCOPES)


@pytest.fixture(scope=_scope)
def leveret_server(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A running Leveret broker, shared and not cleaned: for fixtures that outlive a test."""
    from leveret.testing import broker

    where = _chosen(request.config, "leveret_where", PLACES)
    lines = request.config.getini("leveret_config")
    with broker(where="beside" if where == "beside" else "inside", config="\n".join(lines)) as running:
        yield running


@pytest.fixture
def leveret_broker(request: pytest.FixtureRequest, leveret_server: Broker) -> Iterator[Broker]:
    """A running Leveret broker, empty: its url, port, admin and faults."""
    closed = _chosen(request.config, "leveret_close", CLOSED)
    leveret_server.start()
    yield leveret_server
    leveret_server.start()
    leveret_server.faults.clear()
    leveret_server.admin.delete_all()
    if closed != "none":  # After the cleaning: a client that reconnects at once may declare again.
        leveret_server.admin.close_clients(None if closed == "all" else [KOMBU], "the test is over")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the log of a broker beside a failed test to the report. Pytest captures that of one inside anyway."""
    report = yield
    if report.failed:
        broker = getattr(item, "funcargs", {}).get("leveret_server")
        if broker is not None and broker.log_file.exists():
            text = broker.log_file.read_text(encoding="utf-8", errors="replace")
            report.sections.append(("log of leveret_broker", text[-LOG_CHARACTERS_SHOWN:]))
    return report
