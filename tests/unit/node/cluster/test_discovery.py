"""One cluster comes of it, in whatever order nodes start, ask, hear, crash and return.

The rule is tried by itself (`judge`, one round), and many nodes at once in a `World` where every answer, pause and
crash is drawn from a seed.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest

from leveret.links import link
from leveret.node.cluster import discovery
from leveret.node.cluster.discovery import (
    OWN,
    Address,
    Found,
    GiveUp,
    Heard,
    Hello,
    Join,
    Wait,
    asking,
    decide,
    judge,
)
from leveret.node.config.settings import Discovery, ListedNode, Listener, Settings
from leveret.node.sockets.peer_socket import CallFailed

A, B, C = ("a", 1), ("b", 1), ("c", 1)
NODES = tuple(ListedNode(f"n@{host}", host, port) for host, port in (A, B, C))


def listed(founders: int = 3, nodes: tuple[ListedNode, ...] = NODES) -> Settings:
    return Settings(data_dir="/", discovery=Discovery(backend="classic_config", nodes=nodes, founders=founders))


def dns(founders: int = 3) -> Settings:
    found = Discovery(backend="dns", hostname="nodes.example", founders=founders)
    return Settings(data_dir="/", discovery=found, cluster_listener=Listener("", 1))


def joining(*addresses: Address) -> Settings:
    return Settings(data_dir="/", join=addresses)


def heard(*silent: Address, own: Sequence[Address] = (), **clusters: str | None) -> Heard:
    """Nodes are named after the host they are at; `b="X"`: the one at b is in cluster X."""
    hellos = {(host, 1): Hello(f"n@{host}", cluster, True, None) for host, cluster in clusters.items()}
    return Heard(hellos, frozenset(own), silent)


def reason(verdict: discovery.Decision | Wait) -> str:
    assert isinstance(verdict, Wait)
    return verdict.reason


# One round


def test_the_smallest_founds_once_it_has_spoken_with_all() -> None:
    assert judge(listed(), "n@a", heard(b=None, c=None)) == Found()
    assert "no answer from n@c (c:1)" in reason(judge(listed(), "n@a", heard(C, b=None)))
    assert "n@a founds the cluster, and has not done so yet" in reason(judge(listed(), "n@b", heard(a=None, c=None)))
    assert "n@a founds the cluster, and does not answer" in reason(judge(listed(), "n@b", heard(A, c=None)))


def test_fewer_suffice_where_the_hint_says_so_but_still_only_the_smallest_founds() -> None:
    assert judge(listed(1), "n@a", heard(B, C)) == Found()
    assert judge(listed(2), "n@a", heard(C, b=None)) == Found()
    assert isinstance(judge(listed(2), "n@a", heard(B, C)), Wait)
    assert isinstance(judge(listed(1), "n@b", heard(A, C)), Wait)


def test_a_cluster_that_exists_is_joined_by_the_smallest_too() -> None:
    assert judge(listed(), "n@a", heard(B, c="X")) == Join((C,))
    assert judge(listed(), "n@c", heard(a="X", b="X")) == Join((A, B))
    assert judge(dns(), "n@a", heard(B, c="X")) == Join((C,))
    assert judge(joining(B, C), "n@a", heard(B, c="X")) == Join((C,))


def test_who_is_about_to_be_a_member_is_neither_joined_nor_passed_over() -> None:
    about = Heard({B: Hello("n@b", "X", False, None), C: Hello("n@c", None, False, None)}, frozenset(), ())
    assert "n@b is about to be a member" in reason(judge(listed(), "n@a", about))


@pytest.mark.parametrize("settings", [listed(), dns(), joining(B, C)])
def test_of_two_clusters_none_is_joined(settings: Settings) -> None:
    assert "2 clusters (n@b; n@c)" in reason(judge(settings, "n@a", heard(b="X", c="Y")))


@pytest.mark.parametrize("settings", [listed(), dns(), joining(B, C)])
def test_a_namesake(settings: Settings) -> None:
    assert "b:1 has this node's name" in reason(judge(settings, "n@b", heard(b="X", c="X")))


def test_a_node_outside_the_list_only_joins() -> None:
    assert "n@0 is not in the list" in reason(judge(listed(), "n@0", heard(a=None, b=None, c=None)))
    assert judge(listed(), "n@0", heard(a="X", b=None, c=None)) == Join((A,))


def test_a_node_with_another_name_than_the_list_says() -> None:
    other = Heard({B: Hello("other@b", None, False, None), C: Hello("n@c", None, False, None)}, frozenset(), ())
    assert "b:1 is other@b, and the list calls it n@b" in reason(judge(listed(), "n@a", other))


def test_lists_that_differ_found_nothing() -> None:
    shorter = listed(2, NODES[1:])
    assert judge(shorter, "n@b", heard(c=None)) == Found()
    theirs = discovery.fingerprint(listed().discovery)
    assert theirs != discovery.fingerprint(shorter.discovery)
    answer = Heard({C: Hello("n@c", None, False, theirs)}, frozenset(), ())
    assert "n@c has another list" in reason(judge(shorter, "n@b", answer))
    assert discovery.fingerprint(listed(1, NODES[::-1]).discovery) == theirs


def test_dns_needs_all_addresses_and_enough_names() -> None:
    assert judge(dns(), "n@a", heard(own=[A], b=None, c=None)) == Found()
    assert "2 of the 3 nodes" in reason(judge(dns(), "n@a", heard(own=[A], b=None)))
    assert "nobody answers at d:1" in reason(judge(dns(), "n@a", heard(("d", 1), own=[A], b=None, c=None)))
    assert "n@a founds the cluster" in reason(judge(dns(), "n@b", heard(own=[B], a=None, c=None)))


def test_one_node_with_two_addresses_counts_once() -> None:
    twice = Heard({B: Hello("n@b", None, False, None), ("b6", 1): Hello("n@b", None, False, None)}, frozenset([A]), ())
    assert "2 of the 3 nodes" in reason(judge(dns(), "n@a", twice))


def test_who_was_told_to_join_never_founds() -> None:
    assert "n@b, n@c belongs to no cluster yet" in reason(judge(joining(B, C), "n@a", heard(b=None, c=None)))
    assert "nobody answers at b:1, c:1" in reason(judge(joining(B, C), "n@a", heard(B, C)))
    assert isinstance(judge(joining(A), "n@a", heard(own=[A])), GiveUp)
    assert isinstance(judge(joining(A, B), "n@a", heard(B, own=[A])), Wait)


# Rounds


class Asked:
    """Answers by round, and what was asked and slept."""

    def __init__(self, *rounds: Mapping[Address, Mapping[str, Any]]) -> None:
        self.rounds = list(rounds)
        self.slept: list[float] = []
        self.asked: list[Address] = []

    async def ask(self, address: Address) -> Mapping[str, Any] | None:
        self.asked.append(address)
        return self.rounds[len(self.slept)].get(address) if len(self.slept) < len(self.rounds) else None

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


FRESH_B = {"name": "n@b", "uuid": "01", "cluster": None, "founded": False}
FRESH_C = {"name": "n@c", "uuid": "02", "cluster": None, "founded": False}


async def test_alone() -> None:
    world = Asked()
    assert await decide(Settings(data_dir="/"), "n@a", world.ask, world.sleep) == Found()
    assert world.asked == []


async def test_round_after_round_until_all_are_there() -> None:
    # What was heard a round ago does not count.
    world = Asked({B: FRESH_B}, {C: FRESH_C}, {B: FRESH_B, C: FRESH_C})
    assert await decide(listed(), "n@a", world.ask, world.sleep) == Found()
    assert world.slept == [0.5, 0.5]
    assert A not in world.asked


async def test_the_limit(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "leveret")
    world = Asked({B: FRESH_B})
    settings = Settings(
        data_dir="/",
        discovery=listed().discovery,
        discovery_retry_limit=42,
        discovery_retry_interval_ms=2_000,
    )
    given_up = await decide(settings, "n@a", world.ask, world.sleep)
    assert isinstance(given_up, GiveUp)
    assert "found no cluster in 42 tries" in given_up.text
    assert "no answer from n@b (b:1), n@c (c:1). Start them too" in given_up.text
    assert world.slept == [2.0] * 41
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(")")[0] for line in lines] == [
        "no cluster yet (try 1 of 42",
        "no cluster yet (try 2 of 42",  # The reason changed.
        "no cluster yet (try 21 of 42",
        "no cluster yet (try 41 of 42",
    ]


async def test_an_answer_that_makes_no_sense_is_none() -> None:
    for nonsense in ({}, {"name": 7}, {"name": "n@b", "cluster": 7}, {"name": "n@b", "fingerprint": 7}):
        world = Asked({B: nonsense, C: FRESH_C}, {B: FRESH_B, C: FRESH_C})
        assert await decide(listed(), "n@a", world.ask, world.sleep) == Found()
        assert len(world.slept) == 1


async def test_candidates() -> None:
    async def resolve(hostname: str) -> list[str]:
        assert hostname == "nodes.example"
        return ["10.0.0.2", "::1", "10.0.0.1", "10.0.0.2"]

    assert await discovery.candidates(listed(), resolve) == [A, B, C]
    assert await discovery.candidates(joining(B), resolve) == [B]
    assert await discovery.candidates(dns(), resolve) == [("10.0.0.1", 1), ("10.0.0.2", 1), ("::1", 1)]
    assert await discovery.candidates(Settings(data_dir="/"), resolve) == []


async def test_the_systems_resolver() -> None:
    assert "127.0.0.1" in await discovery.resolve_by_system("127.0.0.1")
    assert await discovery.resolve_by_system("a name that is none") == []


async def test_asking_by_a_call() -> None:
    def answering(answer: bytes | CallFailed) -> Callable[[Address], Awaitable[bytes]]:
        async def call(address: Address) -> bytes:
            if isinstance(answer, CallFailed):
                raise answer
            return answer

        return call

    assert await asking(answering(json.dumps(FRESH_B).encode()))(B) == FRESH_B
    assert await asking(answering(CallFailed(link.SELF, "own")))(B) is OWN
    assert await asking(answering(CallFailed("unreachable", "off")))(B) is None
    assert await asking(answering(b"\xff"))(B) is None
    assert await asking(answering(b"[]"))(B) is None


# Many nodes at once


class World:
    """Nodes that start together. Whatever is awaited is a wish; a seed says which one is granted next, and whether.

    Founding and joining take steps, as in reality: a node says that it is about to be a member, then its disk says that
    it is one, then it lets others join. A crash takes all that is not on disk.
    """

    def __init__(self, seed: int, settings: Mapping[str, Settings], seen: Mapping[str, Sequence[str]]) -> None:
        self.rng = random.Random(seed)
        self.settings = settings
        self.seen = seen  # by node: the hosts that it finds in DNS
        self.cluster: dict[str, str] = {}  # by host: what its disk says
        self.about: dict[str, str] = {}
        self.announced: dict[str, str] = {}
        self.up: set[str] = set()
        self.cut: set[tuple[str, str]] = set()
        self.wishes: list[asyncio.Future[None]] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.founded: list[str] = []
        self.given_up: set[str] = set()

    async def chance(self) -> None:
        wish: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.wishes.append(wish)
        await wish

    async def live(self, host: str) -> None:
        """A start of a node, until it is a member or stops."""

        async def ask(address: Address) -> Mapping[str, Any] | None:
            await self.chance()
            other = address[0]
            if other == host:
                return OWN
            if other not in self.up or (host, other) in self.cut:
                return None
            cluster, founded = self.about.get(other), other in self.announced
            await self.chance()  # The answer is old when it arrives.
            return {"name": f"n@{other}", "uuid": "", "cluster": cluster, "founded": founded}

        async def sleep(seconds: float) -> None:
            await self.chance()

        async def resolve(hostname: str) -> Sequence[str]:
            await self.chance()
            hosts = self.seen.get(host, ())
            return [one for one in hosts if one == host or self.rng.random() < 0.8]

        while host not in self.cluster:
            decision = await decide(self.settings[host], f"n@{host}", ask, sleep, resolve)
            await self.chance()
            if isinstance(decision, GiveUp):
                self.given_up.add(host)
                return
            if isinstance(decision, Found):
                self.founded.append(host)
                self.about[host] = f"{host}{len(self.founded)}"
            else:
                other = self.rng.choice(decision.addresses)[0]
                if other not in self.announced or (host, other) in self.cut:
                    continue
                self.about[host] = self.announced[other]
            await self.chance()
            self.cluster[host] = self.about[host]
        await self.chance()
        self.announced[host] = self.cluster[host]

    def start(self, host: str) -> None:
        self.up.add(host)
        if host in self.cluster:
            self.about[host] = self.cluster[host]  # A node answers nobody before it has read its disk.
        self.tasks[host] = asyncio.get_running_loop().create_task(self.live(host))

    def stop(self, host: str, wiped: bool = False) -> None:
        self.up.discard(host)
        self.about.pop(host, None)
        self.announced.pop(host, None)
        self.tasks.pop(host).cancel()
        if wiped:
            self.cluster.pop(host, None)

    async def run(self, steps: int, faults: float, wiped: str = "") -> None:
        """Faults for `steps`, then an undisturbed end. The host `wiped` loses its disk with each crash."""
        hosts = sorted(self.settings)
        for step in range(steps * 8):
            calm = step > steps
            if calm:
                self.cut.clear()
                if all(host in self.announced or host in self.given_up for host in hosts):
                    break
                for host in hosts:
                    if host not in self.up:
                        self.start(host)
            elif self.rng.random() < faults:
                self.fault(self.rng.choice(hosts), self.rng.choice(hosts), wiped)
            self.wishes = [wish for wish in self.wishes if not wish.done()]
            if self.wishes:
                self.wishes.pop(self.rng.randrange(len(self.wishes))).set_result(None)
            for _ in range(4):  # So deep do tasks and gatherings lie in each other.
                await asyncio.sleep(0)
        for task in self.tasks.values():
            if task.done():
                task.result()
            task.cancel()

    def fault(self, host: str, other: str, wiped: str) -> None:
        match self.rng.randrange(5):
            case 0 if host not in self.up:
                self.start(host)
            case 1 if host in self.up:
                self.stop(host, wiped=host == wiped)
            case 2 | 3:
                self.cut.symmetric_difference_update({(host, other)})
            case 4:
                self.cut.clear()


HOSTS = ("a", "b", "c", "d", "e")
SEEDS = 50


def by_list(founders: int) -> dict[str, Settings]:
    nodes = tuple(ListedNode(f"n@{host}", host, 1) for host in HOSTS)
    found = Discovery(backend="classic_config", nodes=nodes, founders=founders)
    return {host: Settings(data_dir="/", discovery=found, discovery_retry_limit=10_000) for host in HOSTS}


def by_dns(founders: int) -> dict[str, Settings]:
    found = Discovery(backend="dns", hostname="all", founders=founders)
    settings = Settings(data_dir="/", discovery=found, discovery_retry_limit=10_000, cluster_listener=Listener("", 1))
    return dict.fromkeys(HOSTS, settings)


EVERY = dict.fromkeys(HOSTS, HOSTS)


@pytest.mark.parametrize(
    "settings", [by_list(5), by_list(3), by_list(1), by_dns(5)], ids=["list", "list of 3", "list of 1", "dns"]
)
async def test_one_cluster_in_every_order(settings: dict[str, Settings]) -> None:
    for seed in range(SEEDS):
        world = World(seed, settings, EVERY)
        await world.run(400, faults=0.15)
        assert len(set(world.cluster.values())) == 1, f"seed {seed}: {world.cluster}"
        assert set(world.announced) == set(HOSTS), f"seed {seed}: {world.announced}, {world.given_up}"


async def test_a_dns_that_shows_each_node_another_part() -> None:
    for seed in range(SEEDS):
        rng = random.Random(seed)
        seen = {host: [one for one in HOSTS if one == host or rng.random() < 0.6] for host in HOSTS}
        world = World(seed, by_dns(5), seen)
        await world.run(400, faults=0.15)
        assert len(set(world.cluster.values())) <= 1, f"seed {seed}: {world.cluster}"


async def test_a_founder_that_was_wiped_founds_no_second_cluster() -> None:
    """The smallest is wiped, again and again, while the others come and go and are cut off from it."""
    for seed in range(SEEDS):
        world = World(seed, by_list(5), EVERY)
        world.cluster = dict.fromkeys(HOSTS[1:], "old")
        for host in HOSTS:
            world.start(host)
        await world.run(400, faults=0.3, wiped="a")
        assert world.founded == [], f"seed {seed}"
        assert set(world.announced.values()) == {"old"}


async def test_the_smallest_is_down() -> None:
    settings = {host: value for host, value in by_list(5).items() if host != "a"}
    settings = {
        host: Settings(data_dir="/", discovery=value.discovery, discovery_retry_limit=5)
        for host, value in settings.items()
    }
    world = World(1, settings, EVERY)
    for host in settings:
        world.start(host)
    await world.run(400, faults=0)
    assert world.founded == []
    assert world.given_up == set(settings)


async def test_nodes_told_to_join_wait_for_the_first() -> None:
    for seed in range(SEEDS):
        first = Settings(data_dir="/")
        later = Settings(data_dir="/", join=(A, B), discovery_retry_limit=10_000)
        world = World(seed, {"a": first, "b": later, "c": later}, {})
        await world.run(200, faults=0.2)
        assert set(world.founded) == {"a"}, f"seed {seed}"
        assert len(set(world.announced.values())) == 1
        assert len(world.announced) == 3


@pytest.mark.parametrize("broken", ["hint too small in dns", "everybody the smallest", "no wait for all"])
async def test_the_world_shows_what_a_weaker_rule_would_do(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the tests above would prove nothing."""
    settings = by_dns(2) if broken == "hint too small in dns" else by_list(1)
    if broken == "everybody the smallest":
        rule = discovery._by_list
        monkeypatch.setattr(discovery, "_by_list", lambda found, me, heard: rule(_alone(found, me), me, heard))
    clusters: list[int] = []
    for seed in range(SEEDS):
        world = World(seed, settings, EVERY)
        if broken == "no wait for all":
            world.cluster = dict.fromkeys(HOSTS[1:], "old")
        await world.run(400, faults=0.15)
        clusters.append(len(set(world.cluster.values())))
    assert max(clusters) > 1


def _alone(found: Discovery, me: str) -> Discovery:
    """The list with this node in front of all others."""
    nodes = tuple(node._replace(name=f"z{node.name}") if node.name != me else node for node in found.nodes)
    return Discovery(backend="classic_config", nodes=nodes, founders=1)
