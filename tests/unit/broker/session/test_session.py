"""A protocol that nobody speaks, on the interface that sessions of all protocols have of the broker.

Its machine is all that MQTT's or STOMP's would be, but for the bytes: lines come in, lines go out, and it knows nothing
of AMQP. Numbers that begin with `#` are chosen by the client, to tell answers apart.

    DECLARE #1 q durable         OK #1 q 0 0            ready messages, consumers
    PUB #2 amq.topic a.b text    OK #2                  when all queues have it safe; GONE #2 if none has it
    SUB #3 q 10                  OK #3 tag              then lines like: MESSAGE 1 tag amq.topic a.b text
    ACK 1                                               or REJECT, or REQUEUE
    …                            NO #4 404 no queue 'q' in vhost '/'
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import leveret.broker.session
from leveret.broker.session.checks import Refused
from leveret.broker.session.message import Delivery, content_of
from leveret.broker.session.session import Session
from leveret.broker.session.wanted import BindingWanted, ConsumerWanted, ExchangeWanted, QueueFound, QueueWanted
from leveret.metadata.model import commands as c
from leveret.metadata.model.refusals import Refusal
from leveret.protocol.properties import Properties
from leveret.protocol.tables import table_from_python
from tests.support.brokers import Cluster
from tests.support.machines import World
from tests.support.mirrored_brokers import Rings

FRAME_MAX = 131_072


class Toy:
    """The machine of one client."""

    def __init__(self, world: World, user: str = "guest", password: str = "guest") -> None:
        self.world = world
        self.broker = world.broker
        assert self.broker.refuse_login(user, password) is None and self.broker.refuse_entry(user, "/") is None
        self.session = Session(self.broker.enter(self, user, "/"), self, f"toy of {user}")
        self.out: list[str] = []
        self.takes = 1_000
        self.crowded: list[Any] = []

    # What the broker asks of a client, and of who receives.

    def close(self, code: int, text: str) -> None:
        self.out.append(f"END {code} {text}")
        self.leave()

    def fail(self, session: Session, refusal: Refusal) -> None:
        self.close(*refusal)

    def on_crowded(self, queue: Any) -> None:
        self.crowded.append(queue)

    def room(self, average_bytes: int) -> int:
        return self.takes

    def receive(self, deliveries: list[Delivery]) -> None:
        self.takes -= len(deliveries)
        self.out += [self._shown("MESSAGE", one) for one in deliveries]

    def on_cancelled(self, tag: str) -> None:
        self.out.append(f"CANCELLED {tag}")

    def leave(self) -> None:
        self.session.close()
        self.broker.leave(self)

    @staticmethod
    def _shown(word: str, one: Delivery) -> str:
        _, body = one.message()
        again = " again" if one.redelivered else ""
        where = f"{one.exchange or '-'} {one.routing_key}"
        return " ".join(filter(None, (word, str(one.number), one.tag, where, body.decode()))) + again

    # Lines.

    def say(self, *lines: str) -> list[str]:
        """What the client says; all that it hears then."""
        for line in lines:
            word, *arguments = line.split()
            try:
                getattr(self, f"_{word.lower()}")(*arguments)
            except Refused as refused:
                self.out.append(f"NO {arguments[0]} {refused.refusal.code} {refused.refusal.text}")
            self.world.turn()
        return self.heard()

    def heard(self) -> list[str]:
        self.world.turn()
        out, self.out = self.out, []
        return out

    def _then(self, number: str, word: str = "OK") -> Callable[[Any], None]:
        def then(answer: Any) -> None:
            if isinstance(answer, Refusal):
                self.out.append(f"NO {number} {answer.code} {answer.text}")
            elif isinstance(answer, QueueFound):
                self.out.append(f"{word} {number} {answer.name} {answer.ready} {answer.consumers}")
            elif isinstance(answer, Delivery):
                self.out.append(self._shown(f"{word} {number}", answer))
            else:
                self.out.append(f"{word} {number}" + ("" if answer is True else f" {answer}"))

        return then

    def _declare(self, number: str, name: str, *words: str) -> None:
        arguments = dict(word.split("=") for word in words if "=" in word)
        wanted = QueueWanted(
            name, "durable" in words, "exclusive" in words, "auto-delete" in words, table_from_python(arguments)
        )
        self.session.topology.declare_queue(wanted, self._then(number))

    def _find(self, number: str, name: str) -> None:
        self.session.topology.find_queue(name, self._then(number))

    def _exchange(self, number: str, name: str, kind: str) -> None:
        self.session.topology.declare_exchange(ExchangeWanted(name, kind), self._then(number))

    def _drop(self, number: str, name: str) -> None:
        self.session.topology.delete_exchange(name, self._then(number))

    def _bind(self, number: str, source: str, name: str, key: str) -> None:
        self.session.topology.bind(BindingWanted(source, "queue", name, key), self._then(number))

    def _unbind(self, number: str, source: str, name: str, key: str) -> None:
        self.session.topology.unbind(BindingWanted(source, "queue", name, key), self._then(number))

    def _delete(self, number: str, name: str, *words: str) -> None:
        self.session.topology.delete_queue(name, self._then(number), "unused" in words, "empty" in words)

    def _purge(self, number: str, name: str) -> None:
        self.session.topology.purge_queue(name, self._then(number))

    def _pub(self, number: str, exchange: str, key: str, *words: str) -> None:
        body = words[-1].encode()
        headers = table_from_python({"CC": list(words[:-1])}) if words[1:] else None
        content = content_of(Properties(headers=headers, delivery_mode=2), body, FRAME_MAX)
        then = self._then(number)
        exchange = "" if exchange == "-" else exchange
        found = self.session.publish(exchange, key, content, lambda safe: then(safe or "NOT"))
        if not found:
            self.out.append(f"NOWHERE {number}")

    def _sub(self, number: str, name: str, prefetch: str = "0", *words: str) -> None:
        arguments = table_from_python({"x-priority": 5} if "first" in words else {})
        wanted = ConsumerWanted(name, "", "no-ack" in words, "exclusive" in words, int(prefetch), arguments)
        self.session.consume(wanted, self, self._then(number))

    def _get(self, number: str, name: str, *words: str) -> None:
        self.session.fetch(name, "no-ack" in words, self._then(number, "GOT"))

    def _cancel(self, number: str, tag: str) -> None:
        self.session.cancel(tag, self._then(number))

    def _ack(self, number: str, *words: str) -> None:
        self.session.acknowledge(self.session.take(int(number), "through" in words))

    def _reject(self, number: str) -> None:
        self.session.reject(self.session.take(int(number), False))

    def _requeue(self, number: str) -> None:
        self.session.take_back(self.session.take(int(number), False))


# -- A queue of this node, of another, mirrored and led here or elsewhere -------------------------------------------


def at_home() -> tuple[World, World]:
    world = World()
    return world, world


def elsewhere() -> tuple[World, World]:
    cluster = Cluster("a", "b", home="b")
    return cluster["a"], cluster["b"]


def led_here() -> tuple[World, World]:
    rings = Rings()
    return rings["a"], rings["b"]


def led_elsewhere() -> tuple[World, World]:
    rings = Rings()
    return rings["b"], rings["a"]


@pytest.fixture(params=[at_home, elsewhere, led_here, led_elsewhere])
def worlds(request: pytest.FixtureRequest) -> tuple[World, World]:
    """Where the client is, and another node."""
    worlds: tuple[World, World] = request.param()
    if request.param in (at_home, elsewhere):  # The others have the queue from the start.
        toy = Toy(worlds[0])
        assert toy.say("DECLARE #1 q durable") == ["OK #1 q 0 0"]
        toy.leave()
    return worlds


@pytest.fixture
def toy(worlds: tuple[World, World]) -> Toy:
    return Toy(worlds[0])


def test_a_message_goes_there_and_comes_back(toy: Toy) -> None:
    assert toy.say("DECLARE #1 q durable") == ["OK #1 q 0 0"]
    assert toy.say("BIND #2 amq.topic q a.*") == ["OK #2"]
    assert toy.say("PUB #3 amq.topic a.b one") == ["OK #3"]
    assert toy.say("FIND #4 q") == ["OK #4 q 1 0"]
    subscribed, message = toy.say("SUB #5 q")
    tag = subscribed.split()[2]
    assert (subscribed, message) == (f"OK #5 {tag}", f"MESSAGE 1 {tag} amq.topic a.b one")
    assert sorted(toy.say("PUB #6 - q two")) == [f"MESSAGE 2 {tag} - q two", "OK #6"]
    assert toy.say("ACK 2 through", f"CANCEL #7 {tag}", "FIND #8 q") == ["OK #7", "OK #8 q 0 0"]
    assert toy.say("UNBIND #9 amq.topic q a.*", "PUB #10 amq.topic a.b lost") == ["OK #9", "NOWHERE #10", "OK #10"]
    assert toy.session.unacked.count == toy.session.consumed == 0


def test_settling(toy: Toy) -> None:
    toy.say("PUB #1 - q one", "PUB #2 - q two", "PUB #3 - q three")
    assert toy.say("GET #4 q") == ["GOT #4 1 - q one"]
    assert toy.say("REQUEUE 1", "GET #5 q") == ["GOT #5 2 - q one again"]
    assert toy.say("REJECT 2", "GET #6 q no-ack", "GET #7 q") == ["GOT #6 3 - q two", "GOT #7 4 - q three"]
    assert toy.say("GET #8 q") == ["GOT #8 None"]
    assert toy.say("ACK 4", "FIND #9 q") == ["OK #9 q 0 0"]
    assert toy.say("ACK 4") == ["NO 4 406 unknown delivery tag 4"]


def test_prefetch_and_room(toy: Toy) -> None:
    tag = toy.say("SUB #1 q 2")[0].split()[2]
    for number in range(5):
        toy.say(f"PUB #2 - q {number}")
    assert toy.session.unacked.count == 2
    assert toy.say("ACK 1") == [f"MESSAGE 3 {tag} - q 2"]
    toy.takes = 0
    assert toy.say("ACK 3 through") == []
    toy.takes = 1
    toy.session.on_room()
    assert toy.heard() == [f"MESSAGE 4 {tag} - q 3"]
    toy.takes = 10
    toy.session.set_prefetch(1)  # For all consumers of the session together.
    assert toy.heard() == [] and toy.say("ACK 4") == [f"MESSAGE 5 {tag} - q 4"]


def test_what_was_out_comes_back(toy: Toy) -> None:
    toy.say("PUB #1 - q one", "PUB #2 - q two", "SUB #3 q", "GET #4 q")
    toy.leave()
    other = Toy(toy.world)
    assert other.say("FIND #1 q") == ["OK #1 q 2 0"]
    assert [line.rpartition(" - ")[2] for line in other.say("SUB #2 q")[1:]] == ["q one again", "q two again"]
    assert toy.broker.clients == {other: other.session.login} and toy.broker.sessions == {other.session: None}


def test_the_other_node(worlds: tuple[World, World]) -> None:
    here, there = map(Toy, worlds)
    tag = there.say("SUB #1 q")[0].split()[2]
    assert here.say("PUB #1 - q one") == ["OK #1"]
    assert there.heard() == [f"MESSAGE 1 {tag} - q one"]
    assert there.say("ACK 1") == [] and here.say("FIND #2 q") == ["OK #2 q 0 1"]
    assert here.say("DELETE #3 q unused") == ["NO #3 406 queue 'q' in vhost '/' in use"]
    assert here.say("DELETE #4 q") == ["OK #4 0"] and there.heard() == [f"CANCELLED {tag}"]
    assert here.say("DELETE #5 q", "GET #6 q") == ["OK #5 0", "NO #6 404 no queue 'q' in vhost '/'"]


def test_further_keys(toy: Toy) -> None:
    toy.say("DECLARE #1 r", "PUB #2 - q r one")
    assert toy.say("GET #3 q no-ack", "GET #4 r no-ack") == ["GOT #3 1 - q one", "GOT #4 2 - q one"]


# -- What is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("PUB #1 none k x", "NO #1 404 no exchange 'none' in vhost '/'"),
        ("GET #1 none", "NO #1 404 no queue 'none' in vhost '/'"),
        ("SUB #1 none", "NO #1 404 no queue 'none' in vhost '/'"),
        ("FIND #1 none", "NO #1 404 no queue 'none' in vhost '/'"),
        ("PURGE #1 none", "NO #1 404 no queue 'none' in vhost '/'"),
        ("BIND #1 none q k", "NO #1 404 no exchange 'none' in vhost '/'"),
        ("DECLARE #1 amq.q", "NO #1 403 queue name 'amq.q' contains reserved prefix 'amq.*'"),
        (
            "DECLARE #1 q x-queue-type=odd durable",
            "NO #1 406 inequivalent arg 'x-queue-type' for queue 'q' in vhost '/': received the value 'odd' of type "
            "'longstr' but current is none",
        ),
        (
            "DECLARE #1 new x-queue-type=odd",
            "NO #1 406 invalid arg 'x-queue-type' for queue 'new' in vhost '/': \"unsupported queue type 'odd'\"",
        ),
        ("EXCHANGE #1 e odd", "NO #1 503 unknown exchange type 'odd'"),
        ("CANCEL #1 none", "OK #1 False"),
    ],
)
def test_refusals(line: str, answer: str) -> None:
    toy = Toy(World())
    toy.say("DECLARE #0 q durable")
    assert toy.say(line) == [answer]
    assert toy.say("PUB #2 - q x", "GET #3 q") == ["OK #2", "GOT #3 1 - q x"]  # It goes on all the same.


def test_rights() -> None:
    world = World()
    guest = world.metadata.users["guest"]
    world.apply(c.PutUser("u", guest.password_hash, guest.hashing))
    assert world.broker.refuse_entry("u", "/") == "access to vhost '/' refused for user 'u'"
    world.apply(c.SetPermissions("u", "/", "^mine", "^mine", "^mine"))
    Toy(world).say("DECLARE #1 q")
    toy = Toy(world, "u")
    refused = "403 access to queue 'q' in vhost '/' refused for user 'u'"
    lines = ("GET #1 q", "SUB #2 q", "PURGE #3 q", "DELETE #4 q", "DECLARE #5 q")
    assert toy.say(*lines) == [f"NO #{at} {refused}" for at in range(1, 6)]
    assert toy.say("DECLARE #6 mine") == ["OK #6 mine 0 0"]
    (answer,) = toy.say("PUB #7 - mine x")
    assert answer == "NO #7 403 access to exchange 'amq.default' in vhost '/' refused for user 'u'"


def test_exclusive_queues_are_their_owners_and_go_with_them() -> None:
    world = World()
    toy, other = Toy(world), Toy(world)
    assert toy.say("DECLARE #1 mine exclusive") == ["OK #1 mine 0 0"]
    (locked,) = other.say("GET #1 mine")
    assert locked.startswith("NO #1 405 cannot obtain exclusive access to locked queue 'mine' in vhost '/'")
    assert other.say("DECLARE #2 mine exclusive")[0].startswith("NO #2 405 ")
    toy.leave()
    assert other.say("FIND #3 mine") == ["NO #3 404 no queue 'mine' in vhost '/'"]


def test_a_session_that_ends_while_its_queue_is_declared_leaves_none() -> None:
    world = World()
    toy = Toy(world)
    world.holds_metadata = True
    toy.say("DECLARE #1 mine exclusive")
    toy.leave()
    world.release_metadata()
    world.turn()
    assert toy.out == ["NO #1 504 the session is closed"] and not world.broker.queues_by_id


def test_consumers_exclude_each_other() -> None:
    world = World()
    toy, other = Toy(world), Toy(world)
    toy.say("DECLARE #1 q", "SUB #2 q 0 exclusive")
    assert other.say("SUB #1 q") == ["NO #1 403 queue 'q' in vhost '/' in exclusive use"]


def test_the_end_of_a_vhost_or_a_user_is_the_end_of_its_clients() -> None:
    world = World()
    toy = Toy(world)
    world.apply(c.DeleteUser("guest"))
    assert toy.heard() == ["END 320 user 'guest' is deleted"] and not world.broker.clients


def test_messages_that_are_kept_too_long_end_the_session() -> None:
    world = World()
    toy = Toy(world)
    toy.say("DECLARE #1 q", "PUB #2 - q x", "GET #3 q")
    world.broker.now_ms += 5_000
    world.broker.end_slow_channels(4_000)
    assert toy.heard()[0].startswith("END 406 delivery acknowledgement on channel 1 timed out.")
    assert Toy(world).say("FIND #1 q") == ["OK #1 q 1 0"]


def test_a_full_queue_refuses_a_publish() -> None:
    toy = Toy(World())
    toy.say("DECLARE #1 q")
    toy.world.apply(c.SetPolicy("/", "p", "^q$", "queues", 0, {"max-length": 1, "overflow": "reject-publish"}))
    assert toy.say("PUB #2 - q one", "PUB #3 - q two") == ["OK #2", "OK #3 NOT"]


# -- The interface is no protocol's ----------------------------------------------------------------------------------


def test_it_knows_no_protocol() -> None:
    (folder,) = leveret.broker.session.__path__
    files = sorted(Path(folder).glob("*.py"))
    assert len(files) > 5
    for file in [*files, Path(__file__)]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                names = (node.module, *(f"{node.module}.{name.name}" for name in node.names))
                assert not any(name.startswith(("leveret.sessions", "leveret.protocol.methods")) for name in names)
