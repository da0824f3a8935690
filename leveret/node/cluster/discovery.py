"""Decides whether a node without data founds a cluster, and if not, which one it joins.

Nodes are often started all at once with one and the same configuration. They must form one cluster. Two clusters out of
one set of nodes are the worst end of a start, because each works and takes messages, and nobody notices until clients
miss what others published; and no merge could put that right. So this module would rather stop a node with a text that
says what to do than found a cluster that might be the second one.

Only a node without data uses this module. A node with data belongs to a cluster, and finds its members in its data; a
configuration that was changed since does not make it leave.

The rule, in rounds. In each round the node asks every candidate the same question: who are you, and which cluster are
you in?

1. Somebody is in a cluster: join it. If answers name two clusters, none is joined: a person has to look at that.
2. Nobody is, and others were named with --join: wait. A node that was told to join never founds.
3. Nobody is, and the configuration lists the nodes: the one whose name is the smallest of the list founds, the others
   wait for it. It founds once it has spoken with all listed nodes, or with `target_cluster_size_hint` of them.
4. Nobody is, and the nodes stand in DNS: as 3, with the names of those who answered in place of the list, once every
   address in DNS has answered and at least `target_cluster_size_hint` nodes are there, this one included. The same
   holds for nodes that Kubernetes knows as those behind a service: see `node.system.kubernetes_api`.

Why one cluster comes of it:

List   Only the smallest can found, whatever the network does, and it founds once: from then on it has data. It makes
       that durable before it lets anybody join, so that a crash in between cannot make it found again with somebody
       already in the first one. No lock is needed, no random delay, and no majority.
DNS    Nodes can see different parts of DNS, for records appear while nodes start. Say the hint is the number of nodes
       that are started. Then a founder has spoken with all of them, a second one too, so each has seen the other
       and only one of them can be the smallest. With a hint below that number, two halves could each found; hence DNS
       without a hint is refused by `config`, where RabbitMQ would go ahead.

Why a founder waits for all, although the smallest of a list could safely begin alone: it may have been wiped. A cluster
then exists, and this node, the founder of old, knows nothing of it. As long as one member answers, it joins. If it
began alone while the members were down or cut off, there would be two clusters. Waiting for all closes that gap:
a cluster of which no listed node knows has no member that is listed. The price is that the first start of all needs
every node once. Where that is impossible (a StatefulSet that starts one pod after the other), set the hint to 1: then
the promise holds for nodes that are not wiped.

    the smallest is down at the first start    nobody founds; the others stop after the last round and say for whom
                                               they waited. Start it, or take it out of every list.
    the smallest was wiped, a member answers   it joins as a new node; its former self is still a member and must be
                                               forgotten, which is part of joining, not of this module
    the smallest was wiped, no member answers  it waits, and stops after the last round
    all were wiped                             nobody remembers a cluster, a new one is founded
    lists differ between nodes                 two nodes may each be the smallest of their own list. Answers carry a
                                               fingerprint of the list, and a founder that meets another one waits

All of it rests on answers that follow the disk. A node answers nobody before it has read which cluster it belongs to;
one that is about to found or to join says so (a cluster, but not `founded`) before it begins to write that down.

This module only decides: `ask` and `sleep` are arguments, and nothing is kept between rounds, since what was true a
round ago proves nothing. Every problem is waited out, because most of them (a node that is being restarted, a name not
yet in DNS, a list that is just being changed) pass; each change of the reason is logged.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from leveret.links import link
from leveret.node.config.settings import DEFAULT_CLUSTER_PORT, Discovery, Listener, Settings
from leveret.node.sockets.peer_socket import CallFailed
from leveret.node.system.json_answers import read_object
from leveret.node.system.kubernetes_api import ServiceAddresses

logger = logging.getLogger("leveret")

Address = tuple[str, int]
# None: nobody answers there, or it is no node of ours.
Ask = Callable[[Address], Awaitable[Mapping[str, Any] | None]]
Sleep = Callable[[float], Awaitable[None]]
Resolve = Callable[[str], Awaitable[Sequence[str]]]

# The answer that stands for the node's own address, where a question is refused.
OWN: Final[Mapping[str, Any]] = {"self": True}
ROUNDS_BETWEEN_REMINDERS: Final = 20


class Found(NamedTuple):
    """Be the first node of a new cluster."""


class Join(NamedTuple):
    """Join the cluster that these belong to; any of them will do."""

    addresses: tuple[Address, ...]


class GiveUp(NamedTuple):
    """Do not start."""

    text: str


Decision = Found | Join | GiveUp


class Wait(NamedTuple):
    """Nothing can be decided yet."""

    reason: str
    advice: str  # for a person, if it stays that way


class Hello(NamedTuple):
    """The answer of a node: its name and its cluster."""

    name: str
    cluster: str | None  # in hex
    founded: bool  # False: it is about to be a member, and cannot let anybody join yet
    fingerprint: str | None  # of the list that it was given


class Heard(NamedTuple):
    """The outcome of one round."""

    hellos: Mapping[Address, Hello]
    own: frozenset[Address]
    silent: tuple[Address, ...]


async def decide(settings: Settings, me_name: str, ask: Ask, sleep: Sleep, resolve: Resolve | None = None) -> Decision:
    """Decides what a node without data does. Takes as many rounds as it needs, up to the limit."""
    if not settings.join and settings.discovery is None:
        return Found()
    wait = Wait("nobody was asked", "")
    told = ""
    find = resolve or _resolver(settings.discovery)
    for number in range(settings.discovery_retry_limit):
        if number:
            await sleep(settings.discovery_retry_interval_ms / 1000)
        addresses = await candidates(settings, find)
        heard = await ask_all([one for one in addresses if one != _listed_address(settings, me_name)], ask)
        verdict = judge(settings, me_name, heard)
        if not isinstance(verdict, Wait):
            return verdict
        wait = verdict
        if wait.reason != told or number % ROUNDS_BETWEEN_REMINDERS == 0:
            told = wait.reason
            logger.info("no cluster yet (try %d of %d): %s", number + 1, settings.discovery_retry_limit, told)
    tries = f"{settings.discovery_retry_limit} tries"
    return GiveUp(f"this node found no cluster in {tries}, and does not found one: {wait.reason}. {wait.advice}")


# -- Whom to ask -------------------------------------------------------------------------------------------------


async def candidates(settings: Settings, resolve: Resolve) -> list[Address]:
    """Returns the cluster ports of all nodes that were named, this node's own perhaps among them."""
    discovery = settings.discovery
    if settings.join:
        return list(settings.join)
    if discovery is None:
        return []
    if discovery.backend == "classic_config":
        return [(node.host, node.port) for node in discovery.nodes]
    # DNS and Kubernetes have no ports. All nodes have the same, as in RabbitMQ, so it is this node's.
    port = settings.cluster_listener.port or DEFAULT_CLUSTER_PORT
    return [(host, port) for host in sorted(set(await resolve(discovery.hostname)))]


def _resolver(discovery: Discovery | None) -> Resolve:
    if discovery is None or discovery.kubernetes is None:
        return resolve_by_system
    return ServiceAddresses(discovery.kubernetes, resolve_by_system).find


async def resolve_by_system(hostname: str) -> list[str]:
    """Returns the addresses of a name: its A and AAAA records, or its entry in the hosts file. Without an answer there
    are none: one may come later."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(hostname, None, type=socket.SOCK_STREAM)
    except OSError as error:
        logger.debug("DNS has no answer for %s: %s", hostname, error)
        return []
    return [str(address[0]) for *_, address in found]


async def ask_all(addresses: Sequence[Address], ask: Ask) -> Heard:
    # All at once: a machine that is off lets each question run into its timeout.
    answers = await asyncio.gather(*(ask(address) for address in addresses))
    hellos: dict[Address, Hello] = {}
    own: set[Address] = set()
    for address, answer in zip(addresses, answers, strict=True):
        if answer is not None and answer.get("self"):
            own.add(address)
        elif (hello := _hello(answer)) is not None:
            hellos[address] = hello
    return Heard(hellos, frozenset(own), tuple(one for one in addresses if one not in hellos and one not in own))


def asking(call: Callable[[Address], Awaitable[bytes]]) -> Ask:
    """Returns the question, made of a call that answers JSON; `call` raises CallFailed."""

    async def ask(address: Address) -> Mapping[str, Any] | None:
        try:
            answer = read_object(await call(address))
        except CallFailed as error:
            if error.reason == link.SELF:
                return OWN
            logger.debug("no answer from %s: %s", Listener(*address), error)
            return None
        except ValueError:
            logger.warning("the answer of %s cannot be read", Listener(*address))
            return None
        return answer

    return ask


def fingerprint(discovery: Discovery | None) -> str | None:
    """Returns a hash of the list of nodes, which is the same at nodes with the same list, in whatever order."""
    if discovery is None or discovery.backend != "classic_config":
        return None
    return hashlib.sha256(repr(sorted(discovery.nodes)).encode()).hexdigest()[:16]


def _hello(answer: Mapping[str, Any] | None) -> Hello | None:
    if answer is None:
        return None
    name, cluster, listed = answer.get("name"), answer.get("cluster"), answer.get("fingerprint")
    if not isinstance(name, str) or not isinstance(cluster, str | None) or not isinstance(listed, str | None):
        return None
    return Hello(name, cluster or None, bool(answer.get("founded", cluster)), listed)


def _listed_address(settings: Settings, name: str) -> Address | None:
    """Returns this node's own address in the list, which need not be asked; None if the list does not have it."""
    if settings.join or settings.discovery is None:
        return None
    return next(((node.host, node.port) for node in settings.discovery.nodes if node.name == name), None)


# -- What follows from the answers -------------------------------------------------------------------------------


def judge(settings: Settings, me_name: str, heard: Heard) -> Decision | Wait:
    """Applies the rule to the answers of one round."""
    for address, hello in heard.hellos.items():
        if hello.name == me_name:
            return Wait(
                f"the node at {Listener(*address)} has this node's name, {me_name}",
                "Give each node a name of its own with --name",
            )
    members = {address: hello for address, hello in heard.hellos.items() if hello.cluster is not None}
    clusters: dict[str, list[str]] = {}
    for hello in members.values():
        clusters.setdefault(hello.cluster or "", []).append(hello.name)
    if len(clusters) > 1:
        parts = "; ".join(", ".join(sorted(names)) for names in clusters.values())
        return Wait(
            f"the nodes named are in {len(clusters)} clusters ({parts})",
            "Join the one that is to stay with --join, and reset the nodes of the other one",
        )
    if members:
        ready = tuple(address for address, hello in members.items() if hello.founded)
        return Join(ready) if ready else Wait(f"{_names(members)} is about to be a member", "Start this node again")
    if settings.join:
        return _not_joined(settings.join, heard)
    assert settings.discovery is not None  # Else there was nobody to ask.
    if settings.discovery.backend != "classic_config":
        return _by_dns(settings.discovery, me_name, heard)
    return _by_list(settings.discovery, me_name, heard)


def _not_joined(join: Sequence[Address], heard: Heard) -> Decision | Wait:
    if len(heard.own) == len(join):
        return GiveUp("--join names this node itself. The first node of a cluster is started without --join")
    if heard.hellos:
        return Wait(
            f"{_names(heard.hellos)} belongs to no cluster yet",
            "Has it been told to join this node? One of them has to be started without --join",
        )
    return Wait(
        f"nobody answers at {_places(heard.silent)}",
        "--join takes a cluster port, by default 25672, not the one for clients. Does that node run, and has it the"
        " same cookie?",
    )


def _by_list(discovery: Discovery, me_name: str, heard: Heard) -> Decision | Wait:
    names = {(node.host, node.port): node.name for node in discovery.nodes}
    for address, hello in heard.hellos.items():
        if hello.name != names.get(address):
            return Wait(
                f"the node at {Listener(*address)} is {hello.name}, and the list calls it {names.get(address)}",
                "Correct cluster_formation.classic_config.nodes, or give that node its name with --name",
            )
    first = min(names.values())
    if me_name not in names.values():
        return Wait(
            f"{me_name} is not in the list of nodes, so it only joins, and none of the list is in a cluster",
            "Add it to cluster_formation.classic_config.nodes, or start it under a name that is there",
        )
    if me_name != first:
        return Wait(
            f"{first} founds the cluster, and {_it_does_what(first, heard)}",
            f"Start {first} too, or take it out of cluster_formation.classic_config.nodes on every node",
        )
    mine = fingerprint(discovery)
    for hello in heard.hellos.values():
        if hello.fingerprint is not None and hello.fingerprint != mine:
            return Wait(
                f"{hello.name} has another list of nodes than this one",
                "Give every node the same cluster_formation.classic_config.nodes",
            )
    if len(heard.hellos) + 1 >= discovery.founders:
        return Found()
    missing = ", ".join(f"{names[one]} ({Listener(*one)})" for one in heard.silent)
    return Wait(
        f"{len(heard.hellos) + 1} of the {discovery.founders} nodes that found the cluster are there; no answer from"
        f" {missing}",
        "Start them too, with the same cookie. To found it with fewer nodes, if no cluster of these nodes can exist,"
        " set cluster_formation.target_cluster_size_hint",
    )


def _by_dns(discovery: Discovery, me_name: str, heard: Heard) -> Decision | Wait:
    names = {me_name, *(hello.name for hello in heard.hellos.values())}
    directory = "DNS" if discovery.backend == "dns" else "Kubernetes"
    if heard.silent:
        return Wait(
            f"nobody answers at {_places(heard.silent)}, where {directory} says that nodes of {discovery.hostname} are",
            f"Start them too, with the same cookie and the same cluster port, or take them out of {directory}",
        )
    if len(names) < discovery.founders:
        return Wait(
            f"{len(names)} of the {discovery.founders} nodes that found the cluster are there:"
            f" {', '.join(sorted(names))}",
            f"Start the others too, and see to it that {directory} has an address for each under {discovery.hostname}",
        )
    first = min(names)
    if me_name == first:
        return Found()
    return Wait(f"{first} founds the cluster, and {_it_does_what(first, heard)}", f"See what {first} logs")


def _it_does_what(first: str, heard: Heard) -> str:
    if any(hello.name == first for hello in heard.hellos.values()):
        return "has not done so yet"
    return "does not answer"


def _names(hellos: Mapping[Address, Hello]) -> str:
    return ", ".join(sorted(hello.name for hello in hellos.values()))


def _places(addresses: Sequence[Address]) -> str:
    return ", ".join(str(Listener(*one)) for one in addresses)
