"""Nodes' links over real sockets."""

from __future__ import annotations

import asyncio
import logging
import select
import shutil
import socket
import struct
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import uvloop

from leveret.links import link
from leveret.links.failure_detector import IN, OUT
from leveret.links.frame_types import PACKED
from leveret.links.link import Identity, Link
from leveret.node.config.settings import TlsOptions
from leveret.node.sockets import peer_links
from leveret.node.sockets.peer_links import Address, PeerInfo, PeerLinks, Respond
from leveret.node.sockets.peer_socket import CallFailed, PeersOptions, PeerTls, call, peer_tls

COOKIE = b"the cookie of the tests"
DEADLINE_S = 60.0
KIND = 20
QUICK = PeersOptions(silence_ms=800, stable_ms=10, retry_ms_min=5, retry_ms_max=50)


# Nodes run on uvloop, command line tools on whatever there is.
pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy. fixture")


@pytest.fixture(params=["uvloop", "asyncio"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    return uvloop.EventLoopPolicy() if request.param == "uvloop" else asyncio.DefaultEventLoopPolicy()


class Node:
    """Somebody who uses links, and remembers all that happened."""

    def __init__(self, name: str, cookie: bytes, options: PeersOptions, tls: PeerTls | None, uuid: bytes) -> None:
        self.name = name
        self.uuid = uuid
        self.told: list[tuple[Any, ...]] = []
        self.frames: list[tuple[str, int, bytes]] = []
        self.happened = asyncio.Event()
        self.infos: dict[str, PeerInfo] = {}
        self.answer: Callable[[Identity, int, bytes, Respond], None] = lambda caller, kind, payload, respond: None
        self.faulty = False
        self.when_down: Callable[[str], None] = lambda peer: None
        self.peers = PeerLinks(asyncio.get_running_loop(), Identity(name, uuid), cookie, self, options, tls)
        self.port = 0

    def _tell(self, *what: Any) -> None:
        self.told.append(what)
        self.happened.set()

    def on_up(self, peer: str, info: PeerInfo) -> None:
        assert ("up", peer) not in self.told or self.count("up", peer) == self.count("down", peer)
        self.infos[peer] = info
        self._tell("up", peer)

    def on_down(self, peer: str, reason: str) -> None:
        assert not self.peers.is_up(peer) and not self.peers.send(peer, KIND, b"")
        self._tell("down", peer, reason)
        self.when_down(peer)

    def on_frame(self, peer: str, kind: int, payload: bytes) -> None:
        if self.faulty:
            raise RuntimeError("a fault of the node's")
        self.frames.append((peer, kind, bytes(payload)))
        self.happened.set()

    def on_drained(self, peer: str) -> None:
        self._tell("drained", peer)

    def on_call(self, caller: Identity, kind: int, payload: bytes, respond: Respond) -> None:
        self._tell("call", caller.name, kind, payload)
        self.answer(caller, kind, payload, respond)

    def count(self, what: str, peer: str) -> int:
        return sum(each[:2] == (what, peer) for each in self.told)

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self.happened.clear()
                await self.happened.wait()

    async def until_up(self, peer: str, times: int = 1) -> None:
        await self.until(lambda: self.count("up", peer) >= times and self.peers.is_up(peer))

    async def until_down(self, peer: str, times: int = 1) -> str:
        await self.until(lambda: self.count("down", peer) >= times)
        return str([each for each in self.told if each[:2] == ("down", peer)][times - 1][2])

    def address(self, uuid: bytes | None = None) -> Address:
        return Address("127.0.0.1", self.port, uuid)


class Cluster:
    def __init__(self) -> None:
        self.nodes: list[Node] = []

    async def start(
        self,
        name: str,
        *,
        cookie: bytes = COOKIE,
        options: PeersOptions = QUICK,
        tls: PeerTls | None = None,
        uuid: bytes | None = None,
        port: int = 0,
    ) -> Node:
        node = Node(name, cookie, options, tls, uuid or name.encode().ljust(16))
        node.port = await node.peers.listen("127.0.0.1", port)
        self.nodes.append(node)
        return node

    async def pair(self, **more: Any) -> tuple[Node, Node]:
        """Two that know each other and are up."""
        a, b = await self.start("a", **more), await self.start("b", **more)
        introduce(a, b)
        await a.until_up("b")
        await b.until_up("a")
        return a, b


def introduce(*nodes: Node) -> None:
    members = {node.name: node.address(node.uuid) for node in nodes}
    for node in nodes:
        node.peers.set_members(members)


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    yield cluster
    for node in cluster.nodes:
        await node.peers.close()


# -- Up, frames, down ------------------------------------------------------------------------------------------------


async def test_three_nodes_talk(cluster: Cluster) -> None:
    nodes = [await cluster.start(name) for name in ("a", "b", "c")]
    introduce(*nodes)
    for node in nodes:
        for other in nodes:
            if node is not other:
                await node.until_up(other.name)
                assert node.peers.send(other.name, KIND, [b"from ", node.name.encode()])
        assert not node.peers.send(node.name, KIND, b"") and not node.peers.send("nobody", KIND, b"")
    for node in nodes:
        await node.until(lambda node=node: len(node.frames) == 2)  # type: ignore[misc]
        expected = [(other.name, KIND, b"from " + other.name.encode()) for other in nodes if other is not node]
        assert sorted(node.frames) == expected
    assert nodes[0].infos["b"].identity == Identity("b", b"b".ljust(16))


async def test_order_and_bytes_of_many_frames(cluster: Cluster) -> None:
    a, b = await cluster.pair()
    payloads = [bytes([number % 251]) * (number * number % 70_000) for number in range(300)]
    for number, payload in enumerate(payloads):
        assert a.peers.send("b", KIND + number % 3, payload)
    await b.until(lambda: len(b.frames) == 300)
    assert b.frames == [("a", KIND + number % 3, payload) for number, payload in enumerate(payloads)]


async def test_frames_that_take_long_leave_room_for_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is handled in each pass of the loop here; so they stay in order, and a peer that closes loses none."""
    monkeypatch.setattr(peer_links, "FRAMES_S_MAX", 0.0)
    monkeypatch.setattr(peer_links, "CLOSE_S", DEADLINE_S)
    a, b = await cluster.pair()
    seen: list[int] = []

    def look() -> None:
        seen.append(len(b.frames))
        if len(b.frames) < 200:
            asyncio.get_running_loop().call_soon(look)

    look()
    for number in range(200):
        a.peers.send("b", KIND, b"%d" % number)
    await a.peers.close()
    await b.until_down("a")
    assert [payload for _, _, payload in b.frames] == [b"%d" % number for number in range(200)]
    assert max(after - before for before, after in pairwise(seen)) <= 2


async def test_largest_frame(cluster: Cluster) -> None:
    a, b = await cluster.pair()
    payload = bytes(link.FRAME_BYTES_MAX)
    a.peers.send("b", KIND, [memoryview(payload)])
    with pytest.raises(ValueError):
        a.peers.send("b", KIND, [payload, b"x"])
    await b.until(lambda: b.frames)
    assert b.frames == [("a", KIND, payload)]


async def test_frames_may_be_compressed(cluster: Cluster) -> None:
    a, b = await cluster.pair(options=QUICK._replace(compresses=True))
    large = b"the same again; " * 10_000
    a.peers.send("b", KIND, b"small")
    a.peers.send("b", KIND, large)
    a.peers.send("b", KIND, [large, b"in parts"])
    await b.until(lambda: len(b.frames) == 3)
    assert b.frames == [("a", KIND, b"small"), ("a", KIND, large), ("a", KIND, large + b"in parts")]
    packed = a.peers.compressors["b"]
    assert packed.bytes_in == 2 * len(large) + 8 and packed.bytes_out < len(large) // 10


async def test_a_packed_frame_that_is_none_ends_the_session(cluster: Cluster) -> None:
    a, b = await cluster.pair()
    a.peers.send("b", PACKED, bytes([KIND]) + b"garbage")
    assert "packed frame is damaged" in await b.until_down("a")
    assert not b.frames


async def test_turn_is_one_write(cluster: Cluster) -> None:
    a, b = await cluster.pair()
    wire = a.peers._up["b"]
    assert wire.transport is not None
    writes: list[int] = []
    write = wire.transport.write

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(transport, name)

        def write(self, data: bytes) -> None:
            writes.append(len(data))
            write(data)

    transport, wire.transport = wire.transport, Counting()  # type: ignore[assignment]
    for _ in range(1000):
        a.peers.send("b", KIND, b"small")
    a.peers.flush()
    a.peers.flush()
    assert writes == [1000 * 10]
    await b.until(lambda: len(b.frames) == 1000)


async def test_stopped_node_is_down_at_once_and_comes_back(cluster: Cluster) -> None:
    a, b = await cluster.pair(options=QUICK._replace(silence_ms=60_000))
    await b.peers.close()
    assert await a.until_down("b") == "the connection was closed"
    assert not a.peers.is_writable("b") and a.peers.unsent_bytes("b") == 0
    again = await cluster.start("b", port=b.port, options=QUICK._replace(silence_ms=60_000))
    introduce(a, again)
    await again.until_up("a")
    await a.until_up("b", 2)
    assert a.peers.send("b", KIND, b"welcome back")
    await again.until(lambda: again.frames)
    assert b.count("down", "a") == 0  # Its own end is not news to a node.


async def test_what_was_sent_before_close_arrives(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_links, "CLOSE_S", DEADLINE_S)  # The moment that it waits for may be too short for much.
    a, b = await cluster.pair()
    for _ in range(50):
        assert a.peers.send("b", KIND, bytes(200_000))
        b.peers.send("a", KIND, bytes(200_000))
    await a.peers.close()
    await b.until_down("a")
    assert len(b.frames) == 50
    assert a.frames == [] and a.told == [("up", "b")]


async def test_a_heartbeat_that_is_not_read_does_not_end_what_was_sent(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_links, "CLOSE_S", DEADLINE_S)
    a, b = await cluster.pair()
    mine = a.peers._members["b"].wires[OUT]
    assert mine is not None and mine.transport is not None
    mine.transport.pause_reading()
    near = mine.transport.get_extra_info("socket")
    theirs = b.peers._members["a"].wires[IN]
    assert theirs is not None and theirs.transport is not None
    theirs.transport.write(link._BEAT)
    await asyncio.to_thread(select.select, [near], [], [], DEADLINE_S)
    for _ in range(50):
        assert a.peers.send("b", KIND, bytes(200_000))
    await a.peers.close()
    await b.until_down("a")
    assert len(b.frames) == 50


@pytest.mark.parametrize("side", [0, 1])
async def test_one_lost_link_ends_the_session_at_both_ends(cluster: Cluster, side: int) -> None:
    a, b = await cluster.pair()
    wire = a.peers._members["b"].wires[side]
    assert wire is not None and wire.transport is not None
    wire.transport.abort()
    await a.until_down("b")
    await b.until_down("a")
    await a.until_up("b", 2)
    await b.until_up("a", 2)
    a.peers.send("b", KIND, b"x")
    await b.until(lambda: b.frames)


@pytest.mark.parametrize("side", [0, 1])
async def test_a_link_ends_before_anything_else_of_the_same_pass(cluster: Cluster, side: int) -> None:
    """When the other end closes it, and not when the transport is done with that."""
    a, b = await cluster.pair()
    wire = a.peers._members["b"].wires[side]
    assert wire is not None and wire.transport is not None
    assert not wire.eof_received()
    assert a.told[-1] == ("down", "b", "the connection was closed") and not a.peers.is_up("b")
    wire.transport.close()
    await b.until_down("a")
    await a.until_up("b", 2)
    assert a.count("down", "b") == 1 and wire not in a.peers._wires


async def test_silent_peer_is_down(cluster: Cluster) -> None:
    a, b = await cluster.pair()
    for wire in b.peers._wires:  # Neither reads nor beats any more, but its sockets stay open.
        assert wire.transport is not None
        wire.transport.pause_reading()
    assert b.peers._ticker is not None
    b.peers._ticker.cancel()
    reason = await a.until_down("b")
    assert reason.startswith("nothing was heard for ")


async def test_ticks_that_come_along_take_the_place_of_its_own(cluster: Cluster) -> None:
    loop = asyncio.get_running_loop()
    a, _ = await cluster.pair(options=QUICK._replace(silence_ms=4_000))
    own = a.peers._ticker
    a.peers.tick_along(501)
    assert a.peers._ticker is own, "heartbeats are due more often than that"
    a.peers.tick_along(400)
    assert a.peers._ticker is not None and own is not None and own.cancelled()
    assert a.peers._ticker.when() - loop.time() == pytest.approx(0.45, abs=0.02), "nothing is due before the next one"
    wire = next(iter(a.peers._wires))
    wire.link.heard_ms -= 1_000
    a.peers.tick_along(400)
    assert a.peers._ticker.when() - loop.time() == pytest.approx(0.25, abs=0.05), "somebody is quiet"


async def test_both_links_of_a_peer_beat_together(cluster: Cluster) -> None:
    a, _ = await cluster.pair(options=QUICK._replace(silence_ms=4_000))
    out, in_ = a.peers._members["b"].wires
    assert out is not None and in_ is not None
    for one, other in ((out, in_), (in_, out)):
        now_ms = a.peers.now_ms()
        one.link._sent_ms, other.link._sent_ms = now_ms - 500, now_ms - 350
        a.peers.tick_along(400)
        assert one.link._sent_ms >= now_ms and other.link._sent_ms >= now_ms
    now_ms = a.peers.now_ms()
    out.link._sent_ms, in_.link._sent_ms = now_ms - 300, now_ms - 500
    a.peers.tick_along(400)
    assert out.link._sent_ms == now_ms - 300, "too early"
    a.peers.send("b", KIND, b"x")
    in_.link._sent_ms = now_ms - 350
    a.peers.tick_along(400)
    assert out.link._sent_ms >= now_ms and in_.link._sent_ms >= now_ms and not out.link.out


async def test_idle_links_stay(cluster: Cluster) -> None:
    """Twice the time of silence without a frame of the users' own."""
    a, b = await cluster.pair(options=QUICK._replace(silence_ms=200))
    passed = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.4, passed.set_result, None)
    async with asyncio.timeout(DEADLINE_S):
        await passed
    assert a.told == [("up", "b")] and b.told == [("up", "a")]


async def test_dials_until_somebody_listens(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    a = await cluster.start("a")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        a.peers.set_members({"b": Address("127.0.0.1", port)})
        async with asyncio.timeout(DEADLINE_S):
            while a.peers._members["b"].failures < 3:
                await asyncio.sleep(0)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1 and warnings[0].startswith(f"cannot link to b at 127.0.0.1:{port}: ")
    b = await cluster.start("b", port=port)
    b.peers.set_members({"a": a.address()})
    await a.until_up("b")
    assert a.peers._members["b"].failures == 0


async def test_internal_error_in_a_frame_ends_the_session(cluster: Cluster) -> None:
    a, b = await cluster.pair()
    b.faulty = True
    a.peers.send("b", KIND, b"x")
    assert await b.until_down("a") == "internal error in handling a frame"
    await a.until_down("b")
    b.faulty = False
    await a.until_up("b", 2)


async def test_frame_before_the_session_is_refused(cluster: Cluster) -> None:
    """Somebody with the cookie and a member's name who does not keep to the order."""
    b = await cluster.start("b")
    b.peers.set_members({"a": Address("127.0.0.1", 1)})
    reader, writer = await asyncio.open_connection("127.0.0.1", b.port)
    end = await greet(reader, writer, Identity("a", b"a".ljust(16)))
    assert end.is_ready
    end.send(KIND, b"too early")
    writer.writelines(end.take())
    async with asyncio.timeout(DEADLINE_S):
        await closed(reader)
    assert b.frames == []
    writer.close()


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, me: Identity) -> Link:
    end = Link(link.DIALER, me, COOKIE, b"n" * 32, 0)
    async with asyncio.timeout(DEADLINE_S):
        while not end.is_ready and not end.is_closed:
            writer.writelines(end.take())
            end.receive(await reader.read(65536))
    return end


async def closed(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


# -- Members ---------------------------------------------------------------------------------------------------------


async def test_forgotten_member_is_down_and_turned_away(cluster: Cluster) -> None:
    a, b = await cluster.pair()
    a.peers.set_members({"a": a.address()})
    assert await a.until_down("b") == "it is no longer a member of the cluster"
    await b.until_down("a")
    async with asyncio.timeout(DEADLINE_S):
        while "is not a member" not in b.peers._members["a"].told:
            await asyncio.sleep(0)
    assert not a.peers.is_up("b") and a.count("up", "b") == 1
    assert a.peers.turned_away() == ["b"] and b.peers.turned_away() == []
    introduce(a, b)
    assert a.peers.turned_away() == []
    await a.until_up("b", 2)


async def test_a_node_without_a_cluster_says_of_nobody_that_it_is_no_member(cluster: Cluster) -> None:
    """It has yet to join, or its app is stopped. Whoever believed it would end itself, as one that was removed."""
    a, b = await cluster.pair()
    a.peers.set_members({}, "this node stops")
    await b.until_down("a")
    async with asyncio.timeout(DEADLINE_S):
        while "belongs to no cluster yet" not in b.peers._members["a"].told:
            assert "is not a member" not in b.peers._members["a"].told
            await asyncio.sleep(0)
    assert a.peers.turned_away() == []


async def test_wiped_node_under_an_old_name_is_not_the_member(cluster: Cluster) -> None:
    a, b = await cluster.pair()
    await b.peers.close()
    await a.until_down("b")
    wiped = await cluster.start("b", port=b.port, uuid=b"wiped".ljust(16))
    wiped.peers.set_members({"a": a.address(), "b": wiped.address()})
    async with asyncio.timeout(DEADLINE_S):
        while "another incarnation" not in a.peers._members["b"].told:
            await asyncio.sleep(0)
    assert a.count("up", "b") == 1 and wiped.told == []
    async with asyncio.timeout(DEADLINE_S):
        while a.peers.turned_away() != ["b"]:
            await asyncio.sleep(0)
    introduce(a, wiped)  # The cluster takes it in.
    await a.until_up("b", 2)
    await wiped.until_up("a")
    assert a.infos["b"].identity.uuid == b"wiped".ljust(16)


async def test_member_of_any_incarnation_is_replaced_by_a_later_one(cluster: Cluster) -> None:
    """The old one is still there when the new one comes: two processes under one name."""
    a, old = await cluster.start("a"), await cluster.start("b")
    a.peers.set_members({"b": old.address()})
    old.peers.set_members({"a": a.address()})
    await a.until_up("b")
    new = await cluster.start("b", uuid=b"new".ljust(16))
    a.peers.set_members({"b": new.address()})
    assert a.count("down", "b") == 0  # Another address is no reason to leave.
    new.peers.set_members({"a": a.address()})
    await a.until_down("b")
    await old.peers.close()
    await a.until(lambda: a.peers.is_up("b") and a.infos["b"].identity.uuid == b"new".ljust(16))


async def test_uuid_learned_later_keeps_the_session(cluster: Cluster) -> None:
    a, b = await cluster.start("a"), await cluster.start("b")
    a.peers.set_members({"b": b.address()})
    b.peers.set_members({"a": a.address()})
    await a.until_up("b")
    introduce(a, b)
    a.peers.send("b", KIND, b"x")
    await b.until(lambda: b.frames)
    assert a.told == [("up", "b")]
    a.peers.set_members({"b": b.address(b"someone else".ljust(16))})
    assert await a.until_down("b") == "another incarnation has taken its place"


async def test_second_link_from_a_peer_takes_the_place_of_the_first(cluster: Cluster) -> None:
    a, b = await cluster.pair()
    reader, writer = await asyncio.open_connection("127.0.0.1", b.port)
    assert (await greet(reader, writer, Identity("a", a.uuid))).is_ready
    assert await b.until_down("a") == "the peer began anew"
    await a.until_down("b")
    await a.until_up("b", 2)
    writer.close()


async def test_address_with_somebody_else(cluster: Cluster) -> None:
    a, b = await cluster.start("a"), await cluster.start("b")
    a.peers.set_members({"c": b.address()})
    async with asyncio.timeout(DEADLINE_S):
        while a.peers._members["c"].told != "expected c at this address, found b":
            await asyncio.sleep(0)
    assert a.told == [] == b.told


async def test_own_address_under_another_name(cluster: Cluster) -> None:
    a = await cluster.start("a")
    a.peers.set_members({"a": a.address(), "alias": a.address()})
    assert list(a.peers._members) == ["alias"]
    async with asyncio.timeout(DEADLINE_S):
        while a.peers._members["alias"].told != "this is the node's own address":
            await asyncio.sleep(0)
    with pytest.raises(CallFailed) as failed:
        await a.peers.call(("127.0.0.1", a.port), KIND, b"", DEADLINE_S)
    assert failed.value.reason == link.SELF


async def test_different_clusters(cluster: Cluster) -> None:
    a, b = await cluster.start("a"), await cluster.start("b")
    a.peers.set_cluster(b"one".ljust(16))
    b.peers.set_cluster(b"two".ljust(16))
    a.peers.set_members({"b": b.address()})
    b.peers.set_members({"a": a.address()})
    async with asyncio.timeout(DEADLINE_S):
        while "different clusters" not in a.peers._members["b"].told:
            await asyncio.sleep(0)
    assert a.told == []


async def test_members_changed_from_within_a_callback(cluster: Cluster) -> None:
    nodes = [await cluster.start(name) for name in ("a", "b", "c")]
    a, b, _ = nodes
    introduce(*nodes)
    await a.until_up("b")
    await a.until_up("c")
    everyone = {node.name: node.address(node.uuid) for node in nodes}

    def forget_all(peer: str) -> None:
        a.peers.set_members({} if peer == "b" else everyone)

    a.when_down = forget_all
    await b.peers.close()
    await a.until_down("b")
    await a.until_down("c")
    await a.until_up("c", 2)
    assert [each[:2] for each in a.told if each[1] == "c"] == [("up", "c"), ("down", "c"), ("up", "c")]


# -- Strangers -------------------------------------------------------------------------------------------------------


async def test_wrong_cookie_is_logged_with_the_address_and_no_secret(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = await cluster.start("a", cookie=b"wrong cookie"), await cluster.start("b")
    introduce(a, b)
    for node in (a, b):
        member = next(iter(node.peers._members.values()))
        async with asyncio.timeout(DEADLINE_S):
            while "different cookies" not in member.told:
                await asyncio.sleep(0)
    assert a.told == [] == b.told
    assert "connection from 127.0.0.1:" in caplog.text
    assert "authentication failed: the two nodes have different cookies" in caplog.text
    assert "wrong cookie" not in caplog.text and COOKIE.decode() not in caplog.text
    # Both try again and again, and fill no log: a line for each end as it dials, and as it is knocked at.
    async with asyncio.timeout(DEADLINE_S):
        while min(next(iter(node.peers._members.values())).failures for node in (a, b)) < 6:
            await asyncio.sleep(0)
    assert sum(record.levelno >= logging.WARNING for record in caplog.records) == 4


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", struct.pack(">IB", 1025, 1), b"\x00" * 5])
async def test_garbage_is_answered_with_a_reason_and_closed(cluster: Cluster, data: bytes) -> None:
    a = await cluster.start("a")
    reader, writer = await asyncio.open_connection("127.0.0.1", a.port)
    writer.write(data)
    async with asyncio.timeout(DEADLINE_S):
        answer = await closed(reader)
    assert answer == b"" or answer[4] == link.REFUSAL
    assert not a.peers._unproven
    writer.close()


async def test_who_says_nothing_is_closed_after_a_while(cluster: Cluster) -> None:
    a = await cluster.start("a", options=QUICK._replace(greeting_ms=100))
    reader, writer = await asyncio.open_connection("127.0.0.1", a.port)
    async with asyncio.timeout(DEADLINE_S):
        assert b"no complete greeting within 100 ms" in await closed(reader)
    writer.close()


async def test_too_many_strangers_do_not_keep_a_member_out(cluster: Cluster) -> None:
    options = QUICK._replace(unproven_max=3, greeting_ms=60_000)
    a, b = await cluster.start("a", options=options), await cluster.start("b", options=options)
    strangers = [await asyncio.open_connection("127.0.0.1", a.port) for _ in range(5)]
    async with asyncio.timeout(DEADLINE_S):
        for reader, _ in strangers[:2]:
            assert await closed(reader) == b""
    assert len(a.peers._unproven) == 3
    introduce(a, b)
    await a.until_up("b")
    await b.until_up("a")
    for _, writer in strangers:
        writer.close()


# -- Slow readers ----------------------------------------------------------------------------------------------------


def stop_reading(node: Node, peer: str) -> asyncio.Transport:
    wire = node.peers._members[peer].wires[1]
    assert wire is not None and wire.transport is not None
    wire.transport.pause_reading()
    return wire.transport


async def test_slow_reader_makes_its_peer_wait(cluster: Cluster) -> None:
    options = QUICK._replace(silence_ms=60_000, unsent_bytes_high=1 << 20)
    a, b = await cluster.pair(options=options)
    transport = stop_reading(b, "a")
    sent = 0
    async with asyncio.timeout(DEADLINE_S):
        while a.peers.is_writable("b") or a.peers.unsent_bytes("b") < 1 << 20:
            assert a.peers.send("b", KIND, bytes(100_000))
            sent += 1
            a.peers.flush()
            await asyncio.sleep(0)
    assert a.peers.unsent_bytes("b") < 3 << 20
    drained = a.count("drained", "b")
    transport.resume_reading()
    await b.until(lambda: len(b.frames) == sent)
    await a.until(lambda: a.count("drained", "b") > drained and a.peers.is_writable("b"))
    assert a.count("down", "b") == 0


async def test_reader_that_never_reads_is_cut_off(cluster: Cluster) -> None:
    options = QUICK._replace(silence_ms=60_000, unsent_bytes_high=1 << 20, unsent_bytes_max=4 << 20)
    a, b = await cluster.pair(options=options)
    stop_reading(b, "a")
    sent = 0
    async with asyncio.timeout(DEADLINE_S):
        while a.peers.send("b", KIND, bytes(1 << 20)):
            sent += 1
            assert a.count("down", "b") == 0  # Never from within `send`.
            assert a.peers.unsent_bytes("b") <= 6 << 20
            await asyncio.sleep(0)
    reason = await a.until_down("b")
    assert reason.startswith("it does not keep up: ")
    await b.until_down("a")
    await a.until_up("b", 2)


# -- Calls -----------------------------------------------------------------------------------------------------------


async def test_call_from_somebody_who_is_no_member(cluster: Cluster) -> None:
    b = await cluster.start("b")
    b.answer = lambda caller, kind, payload, respond: respond([b"you said ", payload])
    me = Identity("leveretctl", b"ctl".ljust(16))
    answer = await call(("127.0.0.1", b.port), KIND, b"hello", DEADLINE_S, me, COOKIE)
    assert answer == b"you said hello"
    assert b.told == [("call", "leveretctl", KIND, b"hello")]
    async with asyncio.timeout(DEADLINE_S):
        while b.peers._calls or b.peers._wires:
            await asyncio.sleep(0)


async def test_call_that_is_answered_much_later(cluster: Cluster) -> None:
    """Longer than the time of silence: whoever waits for an answer is not gone."""
    options = QUICK._replace(silence_ms=200)
    a, b = await cluster.start("a", options=options), await cluster.start("b", options=options)
    loop = asyncio.get_running_loop()
    b.answer = lambda caller, kind, payload, respond: (loop.call_later(0.5, respond, b"at last"), None)[1]
    assert await a.peers.call(("127.0.0.1", b.port), KIND, bytes(1 << 20), DEADLINE_S) == b"at last"


async def test_calls_that_fail(cluster: Cluster) -> None:
    a, b = await cluster.start("a"), await cluster.start("b", options=QUICK._replace(calls_max=1))
    late: list[Respond] = []
    b.answer = lambda caller, kind, payload, respond: late.append(respond)

    async def reason(cookie: bytes, port: int, timeout_s: float = DEADLINE_S) -> str:
        with pytest.raises(CallFailed) as failed:
            await call(("127.0.0.1", port), KIND, b"", timeout_s, a.peers.me, cookie)
        assert str(failed.value)
        return failed.value.reason

    assert await reason(b"wrong", b.port) == link.REFUSED
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        assert await reason(COOKIE, nobody.getsockname()[1]) == "unreachable"
    first = asyncio.create_task(call(("127.0.0.1", b.port), KIND, b"", DEADLINE_S, a.peers.me, COOKIE))
    await b.until(lambda: late)
    assert await reason(COOKIE, b.port) == link.REFUSED  # One at a time, here.
    first.cancel()
    async with asyncio.timeout(DEADLINE_S):
        while b.peers._calls:
            await asyncio.sleep(0)
    late[0](b"nobody is there any more")
    assert await reason(COOKIE, b.port, 0.3) == link.TIMEOUT
    async with asyncio.timeout(DEADLINE_S):
        while b.peers._calls:
            await asyncio.sleep(0)

    def fail(*_: object) -> None:
        raise RuntimeError("a fault of the node's")

    b.answer = fail
    assert await reason(COOKIE, b.port) == link.REFUSED


async def test_close_while_dialing(cluster: Cluster) -> None:
    a = await cluster.start("a")
    a.peers.set_members({"b": Address("127.0.0.1", 1), "c": a.address()})
    await a.peers.close()
    assert not a.peers._wires


# -- TLS -------------------------------------------------------------------------------------------------------------

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on this machine")


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, PeerTls]:
    """Of two nodes under one authority, and of a stranger under its own."""
    folder = tmp_path_factory.mktemp("certificates")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    for authority in ("ours", "theirs"):
        openssl("req", "-x509", *key, "-subj", f"/CN={authority}", "-keyout", f"{folder}/{authority}.key",
                "-out", f"{folder}/{authority}.pem")  # fmt: skip
    for name, authority in (("a", "ours"), ("b", "ours"), ("stranger", "theirs")):
        openssl("req", "-x509", *key, "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1",
                "-addext", "basicConstraints=critical,CA:FALSE", "-CA", f"{folder}/{authority}.pem",
                "-CAkey", f"{folder}/{authority}.key", "-keyout", f"{folder}/{name}.key",
                "-out", f"{folder}/{name}.pem")  # fmt: skip
    return {name: made(folder, name, authority) for name, authority in
            (("a", "ours"), ("b", "ours"), ("stranger", "ours"))}  # fmt: skip


def made(folder: Path, name: str, authority: str) -> PeerTls:
    return peer_tls(
        TlsOptions(
            certfile=f"{folder}/{name}.pem", keyfile=f"{folder}/{name}.key", cacertfile=f"{folder}/{authority}.pem"
        )
    )


@needs_openssl
async def test_links_and_calls_over_tls(cluster: Cluster, certificates: Mapping[str, PeerTls]) -> None:
    a, b = await cluster.start("a", tls=certificates["a"]), await cluster.start("b", tls=certificates["b"])
    introduce(a, b)
    await a.until_up("b")
    await b.until_up("a")
    payload = bytes(range(256)) * 20_000
    for _ in range(3):
        assert a.peers.send("b", KIND, [b"large", payload])
    a.peers.send("b", KIND, b"small")
    await b.until(lambda: len(b.frames) == 4)
    assert b.frames == [("a", KIND, b"large" + payload)] * 3 + [("a", KIND, b"small")]
    b.answer = lambda caller, kind, payload, respond: respond(payload[::-1])
    assert await a.peers.call(("127.0.0.1", b.port), KIND, b"abc", DEADLINE_S) == b"cba"


@needs_openssl
async def test_certificate_of_another_authority_is_refused(
    cluster: Cluster, certificates: Mapping[str, PeerTls]
) -> None:
    a, b = await cluster.start("a", tls=certificates["a"]), await cluster.start("b", tls=certificates["stranger"])
    introduce(a, b)
    for node, other in ((a, "b"), (b, "a")):
        async with asyncio.timeout(DEADLINE_S):
            while node.peers._members[other].failures < 2:
                await asyncio.sleep(0)
    assert "certificate" in a.peers._members["b"].told.lower()
    assert a.told == [] == b.told


@needs_openssl
async def test_without_a_certificate_nobody_gets_to_the_greeting(
    cluster: Cluster, certificates: Mapping[str, PeerTls]
) -> None:
    a = await cluster.start("a", tls=certificates["a"])
    with pytest.raises(CallFailed):
        await call(("127.0.0.1", a.port), KIND, b"", DEADLINE_S, Identity("x", b"x" * 16), COOKIE)
    assert a.told == []


def test_tls_needs_an_authority() -> None:
    with pytest.raises(ValueError, match="authority"):
        peer_tls(TlsOptions(certfile="x", keyfile="x"))


async def test_an_answer_that_the_caller_does_not_take_is_no_fault(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    a = await cluster.start("a")
    a.answer = lambda caller, kind, payload, respond: respond(bytes(5_000))
    me, options = Identity("x", b"x" * 16), QUICK._replace(frame_bytes_max=2_000)
    with pytest.raises(CallFailed, match="a frame of 5000 bytes; the other end takes at most 2000"):
        await call(("127.0.0.1", a.port), KIND, b"", DEADLINE_S, me, COOKIE, options=options)
    assert not any(record.exc_info for record in caplog.records)


async def test_a_frame_that_a_member_does_not_take_costs_the_link(cluster: Cluster) -> None:
    """Its messages may be smaller than ours, by its configuration."""
    a, b = await cluster.start("a"), await cluster.start("b", options=QUICK._replace(frame_bytes_max=2_000))
    introduce(a, b)
    await a.until_up("b")
    assert not a.peers.send("b", KIND, bytes(2_001))
    await a.until_down("b")
    await a.until_up("b", 2)
    assert a.peers.send("b", KIND, bytes(2_000))
