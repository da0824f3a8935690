"""The node's side of leveretctl: one question, one answer, both JSON, over a call on the cluster port.

    {"command": "add_user", "arguments": {"name": "ann", ...}}
    {"ok": <value>}    or    {"error": {"code": 70, "text": "User \"ann\" already exists", "form": "headed"}}

Who has the cookie may ask anything: it could as well join the cluster. So nothing here asks who it is; everything is
checked for what it is, because a slip must end in a sentence and not in a half-changed node.

What the commands rest on:

- *Changes* of metadata are agreed on by the cluster (`Cluster.change`). What RabbitMQ has a text of its own for (a user
  that exists, a vhost that does not) is looked up in this node's copy first; a change that another one overtakes is
  still decided once, when it is applied, and its refusal is handed on.
- *Lists* come page by page, so that a hundred thousand queues neither make one giant frame nor hold up the event loop.
  What only the owner knows (messages waiting, connections) is asked of each node in turn: a `local_*` command of the
  same kind, by a call to its address. A node that does not answer is named in the page (`missing`).
- *Life* (`stop_app`, `join_cluster`, ...) is the server's. A reset closes the links of the old life, and with them the
  one on which it was asked for. Whoever wants to know how it ended gives a *ticket* along with the command, and asks
  for the `outcome` of that ticket if the connection is lost. What takes long is begun (`begin`) and asked for then.

A fault of ours in a command costs that command: it is logged with where it happened, and answered with exit code 70.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, Final

from leveret.base.control_protocol import WITH_USAGE
from leveret.base.exit_codes import SOFTWARE, UNAVAILABLE, USAGE
from leveret.links.frame_types import CONTROL
from leveret.metadata.rules.policies import PolicyBook
from leveret.node.admin.common.command import (
    RUNNING,
    STARTED,
    STOPPED,
    Command,
    Member,
    NoAnswer,
    Node,
    Refused,
    Server,
    check_ticket,
)
from leveret.node.admin.metadata import definitions, users_vhosts_policies
from leveret.node.admin.nodes import cluster, diagnostics, maintenance, partitions, rebalance, runtime_settings
from leveret.node.admin.nodes.rebalancer import Rebalancer
from leveret.node.admin.queues import leases, lists, mirrors, peek, queues, spools
from leveret.node.admin.statistics import peer_data, peer_queries, peer_stats
from leveret.node.cluster.consensus import AdminError, split_address
from leveret.node.sockets.peer_socket import CallFailed
from leveret.node.system.json_answers import read_object

if TYPE_CHECKING:
    from leveret.metadata.model.commands import Command as Change
    from leveret.metadata.model.records import QueueSpec
    from leveret.metadata.store import Applied, Metadata

__all__ = ["CONTROL", "Control"]

logger = logging.getLogger("leveret")

ANSWER_BYTES_MAX: Final = 16 << 20
ASK_TIMEOUT_S: Final = 5.0

NOT_RUNNING: Final = (
    "this command requires the 'leveret' app to be running on the target node. Start it with 'leveretctl start_app'."
)
NOT_STOPPED: Final = (
    "this command requires the 'leveret' app to be stopped on the target node. Stop it with 'leveretctl stop_app'."
)

STARTING: Final = (
    "the 'leveret' app on the target node is starting: it waits for the other nodes of its cluster, of which a "
    "majority must run. See: leveretctl await_startup, leveretctl cluster_status, leveretctl help force_boot"
)
OUTCOMES_MAX: Final = 64

COMMANDS: Final[dict[str, Command]] = {
    **cluster.COMMANDS.table,
    **users_vhosts_policies.COMMANDS.table,
    **lists.COMMANDS.table,
    **queues.COMMANDS.table,
    **mirrors.COMMANDS.table,
    **rebalance.COMMANDS.table,
    **maintenance.COMMANDS.table,
    **partitions.COMMANDS.table,
    **leases.COMMANDS.table,
    **spools.COMMANDS.table,
    **definitions.COMMANDS.table,
    **diagnostics.COMMANDS.table,
    **runtime_settings.COMMANDS.table,
    **peek.COMMANDS.table,
    **peer_data.COMMANDS.table,
    **peer_queries.COMMANDS.table,
    **peer_stats.COMMANDS.table,
}


class Control:
    """Answers control calls for one process."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.commands: Mapping[str, Command] = COMMANDS
        self.started_s = time.monotonic()
        self.life = asyncio.Lock()  # Joining, resetting: one at a time.
        self.outcomes: dict[str, bytes | None] = {}  # By ticket, the oldest first; None: not answered yet.
        self.progress = ""  # Of what was begun last.
        self.moves: dict[int, asyncio.Task[str | None]] = {}  # By the queue's id; what came of it is kept until asked.
        self.desk = definitions.Desk()
        self.rebalancer = Rebalancer(self)
        self.queues_in_order: tuple[Metadata, int, list[QueueSpec]] | None = None  # As of that index; `queue_page`.
        self._begun: set[asyncio.Task[bytes]] = set()
        self._policies: tuple[Metadata, PolicyBook] | None = None

    # -- Answering -----------------------------------------------------------------------------------------------

    async def answer(self, payload: bytes) -> bytes:
        """Never raises: whatever is wrong is in the answer."""
        try:
            name, arguments, ticket = _parse(payload)
        except Refused as refused:
            return _error(refused)
        if ticket is None:
            return await self._answer(name, arguments)
        return await self._answer_for(ticket, name, arguments)

    async def _answer_for(self, ticket: str, name: str, arguments: dict[str, Any]) -> bytes:
        self._expect(ticket)
        answer = self.outcomes[ticket] = await self._answer(name, arguments)
        return answer

    def _expect(self, ticket: str) -> None:
        if ticket not in self.outcomes and len(self.outcomes) >= OUTCOMES_MAX:
            del self.outcomes[next(iter(self.outcomes))]
        self.outcomes[ticket] = None

    def begin(self, ticket: str, name: str, arguments: dict[str, Any]) -> None:
        """Run a command beside the call that asked for it."""
        self.progress = ""
        self._expect(ticket)  # Now: whoever asks for it may be faster than the task.
        task = asyncio.get_running_loop().create_task(self._answer_for(ticket, name, arguments))
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)

    async def _answer(self, name: str, arguments: dict[str, Any]) -> bytes:
        try:
            answer = _encode({"ok": await self.run(name, arguments)})
            if len(answer) <= ANSWER_BYTES_MAX:
                return answer
            raise Refused(SOFTWARE, f"the answer to {name} has {len(answer)} bytes; that is too much for one frame")
        except Refused as refused:
            return _error(refused)

    async def run(self, name: str, arguments: dict[str, Any]) -> Any:
        """Raises Refused, and nothing else."""
        command = self.commands.get(name)
        if command is None:
            raise Refused(USAGE, f"this node knows no command '{name}'")
        checked = command.checked(arguments)
        self._check_when(command.when)
        try:
            return await command.run(self, **checked)
        except Refused:
            raise
        except AdminError as error:
            raise Refused(UNAVAILABLE, str(error)) from None
        except Exception as error:
            logger.exception("control command %s: internal error", name)
            raise Refused(SOFTWARE, f"internal error in {name}: {error!r}; the log of the node says where") from None

    def _check_when(self, when: str) -> None:
        stopped = self.server.node is None and not self.is_starting
        if stopped and when in (STARTED, RUNNING):
            raise Refused(USAGE, NOT_RUNNING, WITH_USAGE)
        if not stopped and when == STOPPED:
            raise Refused(USAGE, NOT_STOPPED, WITH_USAGE)
        if (when == RUNNING and not self.server.prepared) or (when == STARTED and self.server.node is None):
            raise Refused(UNAVAILABLE, STARTING)

    # -- For the commands ----------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.server.settings.node_name

    @property
    def is_starting(self) -> bool:
        """The app is on its way: it looks for its cluster, or catches up with it."""
        server = self.server
        return not server.prepared and (server.node is not None or server.starting is not None)

    @property
    def node(self) -> Node:
        """The running application. Raises Refused: it may have been stopped while a command waited."""
        node: Node | None = self.server.node
        if node is None:
            raise Refused(USAGE, NOT_RUNNING, WITH_USAGE)
        return node

    @property
    def policies(self) -> PolicyBook:
        """What holds for which name. Patterns are compiled once."""
        metadata = self.node.metadata
        if self._policies is None or self._policies[0] is not metadata:
            self._policies = metadata, PolicyBook(metadata)
        return self._policies[1]

    async def change(self, command: Change) -> None:
        """Have the cluster agree on a change. Raises Refused."""
        await self.agreed(self.node.cluster.change(command))

    async def agreed(self, change: Awaitable[Applied]) -> None:
        applied = await change
        if applied.refused is not None:
            raise Refused(UNAVAILABLE, applied.refused.text)

    def member(self, name: str) -> Member | None:
        found: Member
        for found in self.node.cluster.members():
            if found.name == name:
                return found
        return None

    async def at(self, name: str, command: str, arguments: dict[str, Any]) -> Any:
        """Run a command at the member of that name, be it this one. Raises NoAnswer, or the Refused of that node."""
        if name == self.name:
            return await self.run(command, arguments)
        member = self.member(name)
        if member is None or not member.running:
            raise NoAnswer(f"node {name} is not running")
        payload = _encode({"command": command, "arguments": arguments})
        try:
            data = await self.node.peers.call(split_address(member.address), CONTROL, payload, ASK_TIMEOUT_S)
        except CallFailed as error:
            raise NoAnswer(f"node {name} did not answer: {error}") from None
        try:
            answer = read_object(data)
        except ValueError as error:
            raise NoAnswer(f"the answer of node {name} cannot be read: {error}") from None
        if "error" in answer:
            refusal = answer["error"]
            raise Refused(refusal["code"], refusal["text"], refusal["form"])
        return answer["ok"]


def _parse(payload: bytes) -> tuple[str, dict[str, Any], str | None]:
    try:
        asked = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise Refused(USAGE, f"no JSON: {error}") from None
    if not isinstance(asked, dict) or not isinstance(asked.get("command"), str):
        raise Refused(USAGE, 'a control call is an object with "command" and "arguments"')
    arguments = asked.get("arguments", {})
    if not isinstance(arguments, dict):
        raise Refused(USAGE, '"arguments" must be an object')
    ticket = asked.get("ticket")
    if ticket is not None:
        check_ticket(ticket)
    return asked["command"], arguments, ticket


def _error(refused: Refused) -> bytes:
    return _encode({"error": {"code": refused.code, "text": refused.text, "form": refused.form}})


def _encode(answer: Any) -> bytes:
    # Escaped to ASCII: a name that is no UTF-8 is told by lone surrogates, which cannot be written otherwise.
    return json.dumps(answer, separators=(",", ":")).encode("ascii")
