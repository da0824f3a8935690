"""What the link of an exchange leaves upstream, if an attempt before it was cut short."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.client import amqp
from leveret.client.amqp import BrokerError, Name
from leveret.client.machine import Closed
from leveret.federation.bindings import SUFFIXES, following
from leveret.metadata.federation.links import Link
from leveret.metadata.federation.parameters import Upstream
from leveret.metadata.model import commands as c
from leveret.metadata.model.records import ExchangeSpec
from leveret.metadata.shovel.records import LINK, Assignment
from leveret.metadata.shovel.uris import parse_uri
from leveret.metadata.store import Metadata
from leveret.node.federation.calls import IF_UNUSED, PASSIVE
from leveret.node.federation.exchange_worker import CHECK_S, ExchangeWorker

QUEUE = "federation: x -> here"
A, B, C = (f"{QUEUE} {suffix}" for suffix in SUFFIXES)


def text_at(arguments: bytes, at: int) -> tuple[str, int]:
    """Read a short text, and tell where it ends."""
    end = at + 1 + arguments[at]
    return arguments[at + 1 : end].decode(), end


class Far:
    """An upstream, and the wire to it: which exchanges it has, and which of them lead somewhere."""

    def __init__(self) -> None:
        self.uri = parse_uri("amqp://far")
        self.machine = SimpleNamespace(call=self._call_back, server_properties=b"")
        self.exchanges = {"x"}
        self.leading: set[str] = set()
        self.deleted: list[str] = []  # What it was asked to delete.
        self.on_delete: Callable[[], None] = lambda: None

    async def call(self, name: Name, arguments: bytes) -> bytes:
        self._do(name, arguments)
        return b""

    async def reopen(self) -> None:
        """Nothing is behind it."""

    def flush(self) -> None:
        """Everything was answered at once."""

    def _call_back(self, name: Name, arguments: bytes, then: Callable[[bytes | Closed], None]) -> None:
        try:
            self._do(name, arguments)
        except Closed as error:
            then(error)
        else:
            then(b"")

    def _do(self, name: Name, arguments: bytes) -> None:
        first, at = text_at(arguments, 2)
        if name == amqp.EXCHANGE_DECLARE:
            _, at = text_at(arguments, at)
            if first not in self.exchanges and arguments[at] & PASSIVE:
                raise Closed(f"no exchange '{first}'", 404, of_channel=True)
            self.exchanges.add(first)
        elif name == amqp.EXCHANGE_DELETE:
            self.on_delete()
            self.deleted.append(first)
            if arguments[at] & IF_UNUSED and first in self.leading:
                raise Closed(f"exchange '{first}' in use", 406, of_channel=True)
            self.exchanges.discard(first)
            self.leading.discard(first)
        elif name == amqp.QUEUE_BIND:
            self.leading.add(text_at(arguments, at)[0])


class Here:
    """A node that runs the link of the exchange x, with a clock."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.metadata = Metadata()
        self.metadata.apply(c.AddVhost("/"))
        self.loop = SimpleNamespace(time=lambda: self.now_s)
        self.broker = SimpleNamespace(cluster_name="here")
        self.environment = SimpleNamespace(wall_ms=lambda: 0)
        self.cluster = SimpleNamespace(change=self.change)
        self.failed: list[str] = []
        self.is_cut_off = False
        spec = ExchangeSpec("/", "x", "topic")
        link = Link("/", "exchange", "x", Upstream("far", (parse_uri("amqp://far"),)), "x", "p", spec, "")
        self.worker = ExchangeWorker(cast(Any, self), Assignment(LINK, "/", "link", 1), link)

    async def change(self, command: Any) -> Any:
        return SimpleNamespace(refused=SimpleNamespace(text="no majority") if self.is_cut_off else None)

    async def begin(self, far: Far) -> None:
        """An attempt sets up what it needs, and runs."""
        await self.worker.set_up(cast(Any, far))
        self.worker.upstream = cast(Any, far)
        self.worker.running = cast(Any, SimpleNamespace(on_failed=lambda wire, text: self.failed.append(text)))
        far.deleted.clear()

    def go_on(self, seconds: float) -> None:
        self.now_s += seconds
        self.worker.on_second()


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Here:
    monkeypatch.setattr(ExchangeWorker, "_begin", lambda worker, retries: None)
    return Here()


async def test_an_exchange_that_was_asked_for_before_and_made_later_is_deleted(here: Here) -> None:
    """A node upstream that was cut off has kept what the attempt before asked for."""
    far = Far()
    await here.begin(far)
    far.exchanges |= {A, C}
    here.go_on(CHECK_S)
    assert far.exchanges == {"x", B} and far.leading == {B} and not here.failed


async def test_it_is_deleted_once_for_each_attempt(here: Here) -> None:
    """Each time costs the upstream a command that its nodes agree on."""
    far = Far()
    await here.begin(far)
    here.go_on(CHECK_S - 1)
    assert not far.deleted
    for _ in range(3):
        here.go_on(CHECK_S)
    assert far.deleted == [A, C]
    await here.begin(far)
    here.go_on(CHECK_S)
    assert far.deleted == [A, B] and far.exchanges == {"x", C}


async def test_another_exchange_in_use_has_the_link_begin_anew_with_all(here: Here) -> None:
    far = Far()
    await here.begin(far)
    far.exchanges.add(A)
    far.leading.add(A)
    here.go_on(CHECK_S)
    assert here.failed == [f"exchange '{A}' in use"] and far.exchanges == {"x", A, B}
    await here.worker.set_up(cast(Any, far))
    assert far.exchanges == {"x", C} and far.leading == {C}


async def test_one_of_all_leads_to_the_queue_while_another_is_made_anew(here: Here) -> None:
    """Two attempts were cut short. Which exchange had all bindings is not known."""
    far = Far()
    far.exchanges |= {A, B, C}
    led: list[set[str]] = []  # What leads to the queue when something is deleted.
    far.on_delete = lambda: led.append(set(far.leading))
    await here.worker.set_up(cast(Any, far))
    assert far.deleted == [B, A, C] and led == [{A}, {A, B}, {B}]
    assert far.exchanges == {"x", B} and far.leading == {B}


@pytest.mark.parametrize(
    ("present", "new"),
    [("", "B"), ("A", "B"), ("B", "C"), ("C", "A"), ("AB", "C"), ("BC", "A"), ("AC", "B"), ("ABC", "B")],
)
def test_exchanges_take_turns(present: str, new: str) -> None:
    assert following(list(present)) == new


async def test_the_end_of_a_link_deletes_all(here: Here) -> None:
    far = Far()
    await here.begin(far)
    far.exchanges |= {A, C}
    await here.worker.clean_up(cast(Any, far))
    assert far.exchanges == {"x"}


@pytest.mark.parametrize("left", [set(), {A}])
async def test_a_node_that_does_not_know_who_runs_the_link_makes_nothing_upstream(here: Here, left: set[str]) -> None:
    """It was stopped for a while, say, and the link runs at another node, which has looked already."""
    far = Far()
    await here.begin(far)
    far.exchanges |= left
    here.worker.suffix = None if left else here.worker.suffix
    here.is_cut_off = True
    with pytest.raises(BrokerError, match="cut off"):
        await here.worker.set_up(cast(Any, far))
    assert far.exchanges == {"x", B} | left and far.leading == {B}
    here.is_cut_off = False
    await here.worker.set_up(cast(Any, far))
    assert len(far.exchanges) == 2 and far.leading == far.exchanges - {"x"}


class Stopped:
    """A wire whose process is stopped just before it deletes something."""

    def __init__(self, far: Far) -> None:
        self.far = far
        self.uri, self.machine, self.reopen = far.uri, far.machine, far.reopen
        self.is_stopped, self.goes_on = asyncio.Event(), asyncio.Event()

    async def call(self, name: Name, arguments: bytes) -> bytes:
        if name == amqp.EXCHANGE_DELETE:
            self.is_stopped.set()
            await self.goes_on.wait()
        return await self.far.call(name, arguments)


@pytest.mark.parametrize("attempts", [1, 2, 3])
async def test_what_a_stopped_process_deletes_late_is_not_that_of_its_successor(here: Here, attempts: int) -> None:
    """Whichever it has used before, and whether an attempt was cut short or not."""
    far = Far()
    for _ in range(attempts):
        await here.begin(far)
    stopped = Stopped(far)
    late = asyncio.create_task(here.worker.set_up(cast(Any, stopped)))
    await stopped.is_stopped.wait()
    await Here().begin(far)
    stopped.goes_on.set()
    await late
    assert len(far.exchanges) == 2 and far.leading == far.exchanges - {"x"}
