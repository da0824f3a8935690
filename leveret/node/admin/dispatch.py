"""Answers the control commands of leveretctl: one request, one answer, both JSON, over a call on the cluster port.

    {"command": "add_user", "arguments": {"name": "ann", ...}}
    {"ok": <value>}    or    {"error": {"code": 70, "text": "User \"ann\" already exists", "form": "headed"}}

A caller that has the cookie may send any command: it could as well join the cluster. So callers are not authorised
here; but every argument is checked, because a mistake must end in a message and not in a half-changed node.

Kinds of commands:

- *Changes* of metadata are committed by the cluster (`Cluster.change`). Errors for which RabbitMQ has a text of its own
  (a user that exists, a vhost that does not) are looked up in this node's copy first; a change that another one
  overtakes is still decided when it is applied, and its refusal is passed on.
- *Lists* come page by page, so that a hundred thousand queues neither make one giant frame nor hold up the event loop.
  What only one node knows (ready messages, connections) is asked of each node in turn: a `local_*` command of the same
  kind, by a call to its address. A node that does not answer is named in the page (`missing`).
- *Starting and stopping* (`stop_app`, `join_cluster`, ...) is done by the server. A reset closes all links, also the
  one on which it was asked for. A caller that wants to know how it ended sends a *ticket* with the command, and asks
  for the `outcome` of that ticket if the connection is lost. A command that takes long is begun with `begin`, and its
  outcome is asked for.

A bug in a command affects only that command: it is logged with a traceback, and answered with exit code 70.
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
from leveret.metadata.rules.policies import Policies
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
from leveret.node.admin.nodes import (
    cluster,
    diagnostics,
    maintenance,
    node_details,
    partitions,
    rebalance,
    runtime_settings,
)
from leveret.node.admin.nodes.rebalancer import Rebalancer
from leveret.node.admin.queues import (
    federation,
    leases,
    lists,
    messages,
    mirrors,
    mqtt_state,
    peek,
    queues,
    shovels,
    spools,
)
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
    **shovels.COMMANDS.table,
    **federation.COMMANDS.table,
    **spools.COMMANDS.table,
    **mqtt_state.COMMANDS.table,
    **definitions.COMMANDS.table,
    **diagnostics.COMMANDS.table,
    **node_details.COMMANDS.table,
    **runtime_settings.COMMANDS.table,
    **peek.COMMANDS.table,
    **messages.COMMANDS.table,
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
        self.life = asyncio.Lock()  # Joins, resets and the like run one at a time.
        self.outcomes: dict[str, bytes | None] = {}  # By ticket, the oldest first; None: not answered yet.
        self.progress = ""  # The progress of the command that was begun last.
        self.moves: dict[int, asyncio.Task[str | None]] = {}  # By the queue's id; the result is kept until asked for.
        self.desk = definitions.DefinitionTransfers()
        self.rebalancer = Rebalancer(self)
        self.queues_in_order: tuple[Metadata, int, list[QueueSpec]] | None = None  # At that index: see `queue_page`.
        self._begun: set[asyncio.Task[bytes]] = set()
        self._policies: tuple[Metadata, Policies] | None = None

    # -- Answering -----------------------------------------------------------------------------------------------

    async def answer(self, payload: bytes) -> bytes:
        """Runs the command of a request and returns the answer. Never raises: errors are in the answer."""
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
        """Runs a command in a task, after the call that asked for it has been answered."""
        self.progress = ""
        self._expect(ticket)  # Now: the outcome may be asked for before the task begins.
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
        """Runs a command and returns its result. Raises Refused, and nothing else."""
        command = self.commands.get(name)
        if command is None:
            raise Refused(USAGE, f"this node does not know the command '{name}'")
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
        """True while the app starts: it looks for its cluster, or catches up with it."""
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
    def policies(self) -> Policies:
        """The policies, with their patterns compiled once."""
        metadata = self.node.metadata
        if self._policies is None or self._policies[0] is not metadata:
            self._policies = metadata, Policies(metadata)
        return self._policies[1]

    async def change(self, command: Change) -> None:
        """Has the cluster commit a change. Raises Refused."""
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
        """Runs a command at the member of that name, which may be this one. Raises NoAnswer, or that node's Refused."""
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
        raise Refused(USAGE, f"not valid JSON: {error}") from None
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
    # Escaped to ASCII: a name that is not UTF-8 has lone surrogates, which cannot be written otherwise.
    return json.dumps(answer, separators=(",", ":")).encode("ascii")
