"""Declares, checks and refuses control commands; the commands themselves are in the packages beside this one.

A command is a coroutine with named parameters. `Commands.add` records the type of each and whether the application must
run for it, and `Command.checked` compares the arguments of a request with that, so that a handler gets no value of
another type. A refusal has the exit code of leveretctl, RabbitMQ's text, and the form in which rabbitmqctl shows it.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from leveret.base.control_protocol import HEADED
from leveret.base.exit_codes import USAGE

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.queue.local_queue import LocalQueue
    from leveret.metadata.model.commands import Command as Change
    from leveret.metadata.store import Applied, Metadata
    from leveret.node.cluster.maintenance import Maintenance
    from leveret.node.cluster.partition_pause import PartitionPause
    from leveret.node.config.settings import Settings
    from leveret.node.sockets.amqp_socket import AmqpSocket
    from leveret.node.stats.stats_history import StatsHistory
    from leveret.node.storage import Storage
    from leveret.node.system.alarms import Alarms
    from leveret.node.system.loop_watch import LoopWatch
    from leveret.raft import Raft

TICKET_CHARACTERS_MAX: Final = 64

# When a command can be answered.
ALWAYS: Final = "always"
STARTED: Final = "started"  # The app runs, or is catching up with its cluster.
RUNNING: Final = "running"
STOPPED: Final = "stopped"


class NoAnswer(Exception):
    """Another node did not answer."""


class Refused(Exception):
    """The command is refused, or has failed."""

    def __init__(self, code: int, text: str, form: str = HEADED) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.form = form


# -- What control needs of a node ----------------------------------------------------------------------------------


class Member(Protocol):
    """A member of the cluster, as this node sees it."""

    @property
    def name(self) -> str: ...
    @property
    def uuid(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def voter(self) -> bool: ...
    @property
    def running(self) -> bool: ...
    @property
    def leader(self) -> bool: ...
    @property
    def priority(self) -> int: ...


class TwoNodes(Protocol):
    """See `leveret.node.cluster.two_nodes`."""

    def waiting_for(self) -> dict[str, Any] | None: ...
    async def go_on_alone(self) -> str: ...


class Cluster(Protocol):
    @property
    def two_nodes(self) -> TwoNodes: ...
    def why_waiting(self) -> str: ...
    @property
    def leader(self) -> str | None: ...
    @property
    def has_majority(self) -> bool: ...
    @property
    def has_clients(self) -> bool: ...
    @property
    def applied_index(self) -> int: ...
    @property
    def commit_latency_s(self) -> float: ...
    @property
    def raft(self) -> Raft: ...
    def members(self) -> list[Any]: ...  # of Member
    def everybody(self) -> list[Any]: ...  # the same, with witnesses
    def attending(self) -> list[Any]: ...  # the witnesses
    async def change(self, command: Change) -> Applied: ...
    async def forget(self, name: str) -> None: ...
    async def rename(self, old: str, new: str) -> None: ...
    @property
    def leadership(self) -> tuple[str | None, int]: ...  # The leader's id, and the term.
    @property
    def run(self) -> str: ...  # Names this run of the node.
    @property
    def stopped(self) -> bool: ...
    async def until(self, condition: Callable[[], bool], seconds: float | None = None) -> bool: ...


class Peers(Protocol):
    async def call(self, address: tuple[str, int], kind: int, payload: bytes, timeout_s: float) -> bytes: ...
    def retry(self) -> None: ...
    def is_up(self, peer: str) -> bool: ...
    def is_writable(self, peer: str) -> bool: ...
    def unsent_bytes(self, peer: str) -> int: ...


class Node(Protocol):
    """A node whose application runs."""

    @property
    def metadata(self) -> Metadata: ...
    @property
    def broker(self) -> Broker: ...
    @property
    def alarms(self) -> Alarms: ...
    @property
    def samples(self) -> StatsHistory: ...
    @property
    def storage(self) -> Storage: ...
    @property
    def clients(self) -> dict[AmqpSocket, None]: ...
    @property
    def loop(self) -> AbstractEventLoop: ...
    @property
    def cluster(self) -> Cluster: ...
    @property
    def peers(self) -> Peers: ...
    @property
    def pausing(self) -> PartitionPause: ...
    @property
    def maintenance(self) -> Maintenance: ...
    def schedule(self) -> None: ...
    def look(self) -> None: ...  # at memory and disk
    @property
    def started_bytes(self) -> int: ...  # The memory of the process when the node was made.
    def memory_unused(self) -> int: ...
    async def move(self, queue: LocalQueue, to: str) -> None: ...


class Listeners(Protocol):
    """The listeners for clients and HTTP."""

    @property
    def servers(self) -> Sequence[object]: ...
    @property
    def is_suspended(self) -> bool: ...  # All are closed, also those for HTTP.
    @property
    def management_url(self) -> str | None: ...  # For clients; None if there is none.
    @property
    def management_urls(self) -> dict[str, str]: ...  # By scheme.
    def close(self) -> None: ...
    async def open(self, node: Any) -> None: ...
    async def reopened(self) -> None: ...  # Waits while listeners are being opened again.
    async def follow_settings(self) -> None: ...  # Opens and closes what the settings ask for by now.


class Server(Protocol):
    """The process of a node."""

    @property
    def settings(self) -> Settings: ...
    @property
    def configured(self) -> Settings: ...  # As in the configuration, without changes made since the start.
    @property
    def node(self) -> Any: ...  # Node | None; a protocol's members cannot be narrowed to another protocol.
    @property
    def peers(self) -> Any: ...  # Peers | None; there from when the cluster port is open
    @property
    def uuid(self) -> str: ...
    @property
    def prepared(self) -> bool: ...  # The app has caught up with its cluster, and serves.
    @property
    def starting(self) -> object | None: ...  # None unless the app is starting.
    @property
    def ports(self) -> dict[str, int]: ...  # The open ports: cluster, amqp, amqps, management, management_tls.
    @property
    def cookie(self) -> bytes: ...
    @property
    def listeners(self) -> Listeners: ...
    @property
    def watch(self) -> LoopWatch: ...
    @property
    def announce(self) -> Callable[[], None]: ...
    def change_settings(self, settings: Settings) -> None: ...
    async def stop_app(self) -> None: ...
    async def start_app(self) -> None: ...
    async def join(self, address: tuple[str, int]) -> None: ...
    async def reset(self, force: bool = False) -> None: ...
    async def leave(self, progress: Callable[[str], None]) -> None: ...
    async def force_boot(self) -> None: ...
    def request_stop(self) -> None: ...
    def request_restart(self) -> bool: ...


# -- Parameters ----------------------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """The type of a parameter."""

    words: str
    fits: Callable[[Any], bool]
    optional: bool = False

    def or_none(self) -> Kind:
        return self._replace(optional=True)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


TEXT: Final = Kind("a string", lambda value: isinstance(value, str))
NUMBER: Final = Kind("a whole number", _is_number)
FLAG: Final = Kind("true or false", lambda value: isinstance(value, bool))
NUMBERS: Final = Kind("a list of whole numbers", _are_numbers)
TEXTS: Final = Kind("a list of strings", _are_texts)
OBJECT: Final = Kind("an object", lambda value: isinstance(value, dict))
ANYTHING: Final = Kind("a value", lambda value: True)

Handler = Callable[..., Awaitable[Any]]


class Command(NamedTuple):
    """A command and its parameters."""

    run: Handler
    when: str
    parameters: dict[str, Kind]

    def checked(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Returns the arguments for `run`; those that are optional and missing are None. Raises Refused."""
        for name in arguments:
            if name not in self.parameters:
                raise Refused(USAGE, f"unknown argument {name}")
        checked = {}
        for name, kind in self.parameters.items():
            value = arguments.get(name)
            if value is None and kind.optional:
                pass
            elif name not in arguments:
                raise Refused(USAGE, f"argument {name} is missing")
            elif not kind.fits(value):
                raise Refused(USAGE, f"argument {name} must be {kind.words}")
            checked[name] = value
        return checked


class Commands:
    """A table of commands, filled by decorators."""

    def __init__(self) -> None:
        self.table: dict[str, Command] = {}

    def add(self, when: str = RUNNING, **parameters: Kind) -> Callable[[Handler], Handler]:
        """Makes a coroutine function the command of its name."""

        def note(run: Handler) -> Handler:
            self.table[run.__name__] = Command(run, when, parameters)
            return run

        return note


def check_ticket(ticket: object) -> None:
    if not isinstance(ticket, str) or not 0 < len(ticket) <= TICKET_CHARACTERS_MAX:
        raise Refused(USAGE, f'"ticket" must be a string of 1 to {TICKET_CHARACTERS_MAX} characters')
