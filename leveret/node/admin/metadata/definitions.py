"""Imports and exports definitions: `import_definitions`, `export_definitions`, and `load_definitions` at a start.

An import has two parts. First the whole file is checked, and all problems are collected: if there are any, nothing is
changed, so that no import is done by half. Then its items become commands that the cluster commits, section by section,
many under way at a time. Items that are refused only then (a vhost is full, or was deleted meanwhile, or there is no
majority) are reported one by one, and the rest is done.

To import a file twice has the same result as once. What exists is left as it is where RabbitMQ leaves it (exchanges,
queues, bindings), and replaced where RabbitMQ replaces it (users, permissions, policies, parameters). Items that exist
and differ are reported, and so are items that have no meaning here.

A file can have a hundred thousand queues. It does not fit into a frame, so it is staged in parts before it is imported,
and an export is kept for a moment and fetched in parts. Both have a limit: beyond it the oldest is dropped. Other
callbacks of the event loop run every `SLICE` items.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from leveret import __version__
from leveret.base.control_protocol import DOCUMENT_BYTES_MAX, PART_CHARACTERS
from leveret.base.exit_codes import DATA_ERROR, UNAVAILABLE
from leveret.base.json_values import Json, same_json
from leveret.base.safe_regex import PATTERN_COST_MAX, VHOST_COST_MAX, error_of, too_costly
from leveret.broker.routing.router import EXCHANGE_TYPES, check_binding, check_exchange
from leveret.broker.session import checks
from leveret.broker.session.arguments import check_queue_arguments
from leveret.broker.session.wanted import QueueWanted
from leveret.metadata import definitions
from leveret.metadata.definitions import SECTIONS, BadDefinition, Reader, Skipped
from leveret.metadata.model import commands as c
from leveret.metadata.model.hidden_queues import DELAYED, hidden_queue_arguments, hidden_queue_name
from leveret.metadata.model.records import NO_ARGUMENTS, Binding
from leveret.metadata.model.refusals import fits
from leveret.metadata.rules.global_parameters import fault_of
from leveret.metadata.rules.passwords import SALT_BYTES, hash_password, known_hashing
from leveret.metadata.rules.policy_validation import (
    USER_LIMITS,
    VHOST_LIMITS,
    limits_error,
    policy_error,
    policy_notes,
)
from leveret.metadata.rules.redeclare import exchange_mismatch, queue_mismatch
from leveret.metadata.store import PREDECLARED
from leveret.node.admin.common.command import NUMBER, OBJECT, RUNNING, TEXT, Commands, Node, Refused
from leveret.node.cluster import paced_commands

if TYPE_CHECKING:
    from leveret.node.admin.dispatch import Control
    from leveret.protocol.tables import Table

logger = logging.getLogger("leveret")

COMMANDS = Commands()

KEPT_MAX: Final = 4  # Imports that are being staged, and exports that are being fetched.
SLICE: Final = 500
TOLD_EVERY: Final = 10_000
LINES_MAX: Final = 50  # Messages of a kind that are shown.
NAMES_SHOWN: Final = 100  # Of each section of a preview.
FAILURES_MAX: Final = 1_000  # Refused items after which an import is given up: the reason is not in single items.

PARAMETERS: Final = "parameters"

Say = Callable[[str], None]


@dataclass
class Staged:
    """A file that leveretctl is sending in parts."""

    sections: dict[str, list[Any]] = field(default_factory=dict)
    parts: int = 0
    characters: int = 0


@dataclass
class DefinitionTransfers:
    """The imports that leveretctl is sending to a node, and the exports that it is fetching; the oldest first."""

    staged: dict[str, Staged] = field(default_factory=dict)
    exports: dict[str, list[str]] = field(default_factory=dict)


class Lines:
    """Messages for people: the first ones, and how many there were."""

    def __init__(self) -> None:
        self.kept: dict[str, None] = {}
        self.count = 0

    def add(self, line: str) -> None:
        if line not in self.kept:
            self.count += 1
            if len(self.kept) < LINES_MAX:
                self.kept[line] = None

    def told(self) -> list[str]:
        more = self.count - len(self.kept)
        return [*self.kept, *([f"... and {more} more"] if more else [])]


class Import:
    """The import of one file."""

    def __init__(self, node: Node, vhost: str | None = None, version: Json = None) -> None:
        self.node = node
        self.metadata = node.metadata
        self.reader = Reader(_hashed, vhost, version)
        self.problems = Lines()
        self.pattern_costs: dict[str, int] = {}  # By vhost, of all its policies with those of the file.
        self.notes = Lines()
        self.failures = Lines()
        self.done: dict[str, int] = {}
        self.same: dict[str, int] = {}  # Items that existed already.
        self.commands: dict[str, list[c.Command]] = {}
        # Shovels come last: one that began before its queues are there would declare them, without their arguments.
        self.workers: list[c.Command] = []
        # Vhosts and users that exist, or will be created before they are needed.
        self.vhosts = set(self.metadata.vhosts)
        self.users = set(self.metadata.users)
        self.types: dict[tuple[str, str], str] = {}  # The types of the file's exchanges.
        self.queues: set[tuple[str, str]] = set()
        self.masters: dict[str, int] | None = None  # Queues of each node, those under way included.

    # -- Checking ------------------------------------------------------------------------------------------------

    async def check(self, document: Json, vhost: str | None = None) -> None:
        """Collects the problems of a file, and the commands that import it."""
        for problem in definitions.document_problems(document, vhost):
            self.problems.add(problem)
        if self.problems.count or not isinstance(document, dict):
            return
        for section in SECTIONS:
            items = document.get(section, [])
            self.commands[section] = []
            for number, item in enumerate(items if isinstance(items, list) else []):
                if number % SLICE == SLICE - 1:
                    await asyncio.sleep(0)
                self._check_item(section, number, item)

    def _check_item(self, section: str, number: int, item: Json) -> None:
        for name in definitions.unread_fields(section, item):
            self.notes.add(f"{section}: '{name}' has no meaning here, and is left out")
        where = f"{section}[{number}] {definitions.named(section, item)}".rstrip()
        try:
            read = self.reader.read(section, item)
        except BadDefinition as error:
            self.problems.add(f"{where}: {error}")
            return
        if isinstance(read, Skipped):
            self.notes.add(f"{where}: left out: {read.why}")
            return
        for command in read:
            if isinstance(command, c.Bind) and (missing := self._missing_end(command)) is not None:
                self.notes.add(f"{where}: left out: {missing}")
                continue
            problem = self._problem(command)
            if problem is not None:
                self.problems.add(f"{where}: {problem}")
                return
            if isinstance(command, c.SetParameter):
                self.workers.append(command)
            else:
                self.commands[section].append(command)

    def _problem(self, command: c.Command) -> str | None:
        match command:
            case c.PutUser(name=name, hashing=hashing):
                self.users.add(name)
                return None if known_hashing(hashing) else f"unknown password hashing {hashing}"
            case c.SetUserLimits(limits=limits):
                return limits_error(limits, USER_LIMITS, "user-limits")
            case c.AddVhost(name=name):
                self.vhosts.add(name)
                return None if fits(name) else "a vhost's name is UTF-8 of at most 255 bytes"
        vhost = getattr(command, "vhost", None)
        if vhost is not None and vhost not in self.vhosts:
            return f"Virtual host '{vhost}' does not exist"
        match command:
            case c.SetVhostLimits(limits=limits):
                return limits_error(limits, VHOST_LIMITS, "limits")
            case c.SetPermissions(user, _, configure, write, read):
                return self._access_problem(user, configure, write, read)
            case c.SetTopicPermissions(user, _, _, write, read):
                return self._access_problem(user, write, read)
            case c.SetPolicy(name=name, definition=definition, apply_to=apply_to):
                for note in policy_notes(apply_to, definition):
                    self.notes.add(f"policy '{name}' in vhost '{vhost}': {note}")
                error = policy_error(command.pattern, apply_to, definition, command.operator)
                return self._cost_problem(command) if error is None else error
            case c.SetGlobalParameter(name, value):
                return fault_of(self.metadata.global_parameters, name, value)
            case c.DeclareExchange():
                return self._exchange_problem(command)
            case c.DeclareQueue():
                return self._queue_problem(command)
            case c.Bind(vhost, source, _, _, key, arguments):
                if not fits(key):
                    return "routing key must be UTF-8 of at most 255 bytes"
                return check_binding(self._type(vhost, source) or "", key, arguments)
        return None

    def _access_problem(self, user: str, *patterns: str) -> str | None:
        if user not in self.users:
            return f'User "{user}" does not exist'
        return next(
            (f"{pattern}: {bad}" for pattern in patterns if (bad := error_of(pattern, PATTERN_COST_MAX)) is not None),
            None,
        )

    def _cost_problem(self, command: c.SetPolicy) -> str | None:
        """Returns a problem if matching the vhost's policies, with those of the file so far, would take too long."""
        vhost, metadata = command.vhost, self.metadata
        kept = (metadata.operator_policies if command.operator else metadata.policies).get((vhost, command.name))
        before = self.pattern_costs.get(vhost, metadata.pattern_costs.get(vhost, 0))
        more = command.cost - (0 if kept is None else kept.cost)
        self.pattern_costs[vhost] = total = before + more
        return too_costly(vhost, total) if more > 0 and total > VHOST_COST_MAX else None

    def _exchange_problem(self, command: c.DeclareExchange) -> str | None:
        if not fits(command.name):
            return "exchange name must be UTF-8 of at most 255 bytes"
        self.types[command.vhost, command.name] = command.type
        if (command.vhost, command.name) in self.metadata.exchanges:
            return None
        if command.type not in EXCHANGE_TYPES and command.type != DELAYED:
            return f"unknown exchange type '{command.type}'"
        return check_exchange(command.type, command.arguments)

    def _queue_problem(self, command: c.DeclareQueue) -> str | None:
        if not fits(command.name):
            return "queue name must be UTF-8 of at most 255 bytes"
        self.queues.add((command.vhost, command.name))
        if (command.vhost, command.name) in self.metadata.queues or (command.durable and not command.arguments):
            return None
        wanted = QueueWanted(
            command.name, command.durable, auto_delete=command.auto_delete, arguments=command.arguments
        )
        try:
            check_queue_arguments(command.vhost, command.name, wanted)
        except checks.Refused as refused:
            return refused.refusal.text
        return None

    def _type(self, vhost: str, exchange: str) -> str | None:
        spec = self.metadata.exchanges.get((vhost, exchange))
        if spec is not None:
            return spec.type
        found = self.types.get((vhost, exchange))
        if found is None and vhost not in self.metadata.vhosts:
            return _PREDECLARED.get(exchange)  # Predeclared exchanges are created with the vhost.
        return found

    def _missing_end(self, bind: c.Bind) -> str | None:
        vhost, destination = bind.vhost, bind.destination
        if vhost not in self.vhosts:
            return None  # The missing vhost is reported; the binding's ends need not be.
        if self._type(vhost, bind.source) is None:
            return f"no exchange '{bind.source}'"
        if bind.destination_kind == "exchange":
            return None if self._type(vhost, destination) is not None else f"no exchange '{destination}'"
        there = (vhost, destination) in self.queues or (vhost, destination) in self.metadata.queues
        return None if there else f"no queue '{destination}'"

    # -- Importing -----------------------------------------------------------------------------------------------

    async def apply(self, say: Say) -> None:
        """Has the cluster commit all commands."""
        for section in SECTIONS:
            self.done[section] = self.same[section] = 0
        for section in (*SECTIONS, PARAMETERS):
            commands = self.commands.pop(section, []) if section in self.commands else self.workers
            for start in range(0, len(commands), paced_commands.AT_ONCE):
                if start and start % TOLD_EVERY == 0:
                    say(f"{section}: {start} of {len(commands)}")
                some = [self._ready(one) for one in commands[start : start + paced_commands.AT_ONCE]]
                batch = [one for one in some if one is not None]
                self.same[section] += len(some) - len(batch)
                await self._agree(section, batch)
                if self.failures.count >= FAILURES_MAX:
                    self.failures.add(f"too much is refused: given up in the middle of {section}")
                    return

    async def _agree(self, section: str, batch: list[c.Command]) -> None:
        answers = await paced_commands.agree(self.node.cluster, batch)
        for command, applied in zip(batch, answers, strict=True):
            if applied.refused is None:
                self.done[section] += section == "parameters" or not isinstance(command, _LIMITS)
            else:
                name = getattr(command, "name", "") or getattr(command, "destination", "")
                self.failures.add(f"{section}: '{name}': {applied.refused.text}")

    def _ready(self, command: c.Command) -> c.Command | None:
        """Returns the command to propose; None if it would change nothing."""
        if self._is_there(command):
            return None
        if isinstance(command, c.DeclareQueue):
            return self._placed_queue(command)
        return self._placed_exchange(command) if isinstance(command, c.DeclareExchange) else command

    def _is_there(self, command: c.Command) -> bool:
        """Returns whether a command would change nothing; notes queues and exchanges that stay other than it says."""
        mismatch = None
        if isinstance(command, c.DeclareQueue):
            queue = self.metadata.queues.get((command.vhost, command.name))
            if queue is None:
                return False
            mismatch = queue_mismatch(queue, command.durable, command.auto_delete, command.arguments)
        elif isinstance(command, c.DeclareExchange):
            exchange = self.metadata.exchanges.get((command.vhost, command.name))
            if exchange is None:
                return False
            flags = (command.durable, command.auto_delete, command.internal)
            mismatch = exchange_mismatch(exchange, command.type, *flags, command.arguments)
        else:
            return self._is_bound(command) if isinstance(command, c.Bind) else self._is_set(command)
        if mismatch is not None:
            self.notes.add(f"{mismatch}; it stays as it is")
        return True

    # -- Looking before importing --------------------------------------------------------------------------------

    async def preview(self) -> dict[str, Any]:
        """Returns what `apply` would do, by section: how many items are added, changed and the same, and the names of
        the first of those that are not."""
        found: dict[str, Any] = {}
        for section in SECTIONS:
            parts: dict[str, Any] = {"added": [0, []], "changed": [0, []], "same": 0}
            commands = self.commands.get(section, []) + (self.workers if section == PARAMETERS else [])
            for number, command in enumerate(commands):
                if number % SLICE == SLICE - 1:
                    await asyncio.sleep(0)
                if self._is_there(command):
                    parts["same"] += section == PARAMETERS or not isinstance(command, _LIMITS)
                    continue
                part = parts["changed" if self._exists(command) else "added"]
                part[0] += 1
                if len(part[1]) < NAMES_SHOWN:
                    part[1].append(_title(command))
            if commands:
                found[section] = {
                    "added": {"count": parts["added"][0], "names": parts["added"][1]},
                    "changed": {"count": parts["changed"][0], "names": parts["changed"][1]},
                    "same": parts["same"],
                }
        return {"sections": found, "problems": self.problems.told(), "notes": self.notes.told()}

    def _exists(self, command: c.Command) -> bool:
        """Returns whether the item that a command changes exists."""
        metadata = self.metadata
        match command:
            case c.PutUser(name=name):
                return name in metadata.users
            case c.SetUserLimits(user=user):
                return user in metadata.users and bool(metadata.users[user].limits)
            case c.AddVhost(name=name):
                return name in metadata.vhosts
            case c.SetVhostLimits():
                return command.vhost in metadata.vhosts and bool(metadata.vhosts[command.vhost].limits)
            case c.SetPermissions(user=user, vhost=vhost):
                return (user, vhost) in metadata.permissions
            case c.SetTopicPermissions(user=user, vhost=vhost, exchange=exchange):
                return exchange in metadata.topic_permissions.get((user, vhost), {})
            case c.SetPolicy(vhost=vhost, name=name, operator=operator):
                return (vhost, name) in (metadata.operator_policies if operator else metadata.policies)
            case c.SetParameter(component, vhost, name, _):
                return (component, vhost, name) in metadata.parameters
            case c.SetGlobalParameter(name=name):
                return name in metadata.global_parameters
        return False

    def _is_set(self, command: c.Command) -> bool:
        """Returns whether a command would change nothing. A node imports its definitions at each start, and the log of
        commands should not grow by that."""
        metadata = self.metadata
        match command:
            case c.PutUser(name, password_hash, hashing, tags):
                user = metadata.users.get(name)
                return user is not None and (user.password_hash, user.hashing, user.tags) == (
                    password_hash, hashing, tags,
                )  # fmt: skip
            case c.SetUserLimits(name, limits):
                user = metadata.users.get(name)
                return user is not None and user.limits == limits
            case c.AddVhost(name, description, tags):
                vhost = metadata.vhosts.get(name)
                return vhost is not None and (vhost.description, vhost.tags) == (description, tags)
            case c.SetVhostLimits(name, limits):
                vhost = metadata.vhosts.get(name)
                return vhost is not None and vhost.limits == limits
            case c.SetPermissions(user_name, where, configure, write, read):
                return metadata.permissions.get((user_name, where)) == (configure, write, read)
            case c.SetTopicPermissions(user_name, where, exchange, write, read):
                return metadata.topic_permissions.get((user_name, where), {}).get(exchange) == (write, read)
            case c.SetPolicy(vhost=where, name=name, operator=operator):
                kept = (metadata.operator_policies if operator else metadata.policies).get((where, name))
                return kept is not None and definitions.same_policy(kept, command)
            case c.SetParameter(component, where, name, value):
                kept_value = metadata.parameters.get((component, where, name))
                return kept_value is not None and same_json(kept_value, value)
            case c.SetGlobalParameter(name, value):
                return name in metadata.global_parameters and same_json(metadata.global_parameters[name], value)
        return False

    def _is_bound(self, bind: c.Bind) -> bool:
        vhost, source, kind, destination = bind.vhost, bind.source, bind.destination_kind, bind.destination
        arguments = bind.arguments or NO_ARGUMENTS
        if Binding(vhost, source, kind, destination, bind.key, arguments) in self.metadata.bindings:
            return True
        if not arguments:
            return False
        shown = definitions.from_table(arguments)
        group = self.metadata.bindings.between(vhost, source, kind, destination)
        rows = () if group is None else group.with_arguments()
        return any(key == bind.key and definitions.from_table(table) == shown for key, table in rows)

    def _placed_queue(self, command: c.DeclareQueue) -> c.Command:
        home, view = self._place(command.vhost, command.name, command.durable, command.arguments)
        return replace(command, node=home, view=view)

    def _placed_exchange(self, command: c.DeclareExchange) -> c.Command:
        if command.type != DELAYED:
            return command
        arguments = hidden_queue_arguments(command.name)
        home, view = self._place(command.vhost, hidden_queue_name(command.name), True, arguments)
        return replace(command, node=home, view=view)

    def _place(self, vhost: str, name: str, durable: bool, arguments: Table) -> tuple[str, Any]:
        broker = self.node.broker
        if broker.member_changes is None:
            return broker.node_name, None
        if self.masters is None:
            self.masters = dict(broker.loads.masters)
        home = broker.member_changes.home(vhost, name, arguments, self.masters)
        self.masters[home] = self.masters.get(home, 0) + 1
        return home, broker.member_changes.first_view(vhost, name, durable, arguments, home)

    def summary(self) -> dict[str, Any]:
        return {"done": self.done, "same": self.same, "notes": self.notes.told(), "failures": self.failures.told()}


_LIMITS: Final = (c.SetUserLimits, c.SetVhostLimits)  # Part of another item, unless they are parameters.
_PREDECLARED: Final = {name: kind for name, kind, _ in PREDECLARED if name}


def _title(command: c.Command) -> str:
    """Returns the name of an item for a preview, with its vhost if it has one."""
    if isinstance(command, c.Bind):
        return f"{command.vhost}: {command.source} → {command.destination} ({command.key})"
    if isinstance(command, c.SetPermissions):
        return f"{command.vhost}: {command.user}"
    if isinstance(command, c.SetUserLimits):
        return f"limits of {command.user}"
    if isinstance(command, c.SetTopicPermissions):
        return f"{command.vhost}: {command.user}, {command.exchange}"
    vhost, name = getattr(command, "vhost", ""), getattr(command, "name", "")
    return f"{vhost}: {name}" if vhost and name else name or vhost


def _hashed(password: str) -> str:
    return hash_password(password, secrets.token_bytes(SALT_BYTES))


# -- At a start ----------------------------------------------------------------------------------------------------


class LoadFailed(Exception):
    """Definitions that the configuration names cannot be loaded; the text says why."""


def definition_files(path: str) -> list[str]:
    """Returns the file, or all JSON files of the folder in the order of their names. Raises LoadFailed."""
    try:
        if not os.path.isdir(path):
            return [path]
        return [os.path.join(path, name) for name in sorted(os.listdir(path)) if name.endswith(".json")]
    except OSError as error:
        raise LoadFailed(f"cannot read {path}: {error.strerror or error}") from None


def read_document(path: str) -> Json:
    """Reads a file of definitions. Raises LoadFailed."""
    try:
        with open(path, "rb") as file:
            data = file.read(DOCUMENT_BYTES_MAX + 1)
    except OSError as error:
        raise LoadFailed(f"cannot read {path}: {error.strerror or error}") from None
    if len(data) > DOCUMENT_BYTES_MAX:
        raise LoadFailed(f"{path} is larger than {DOCUMENT_BYTES_MAX} bytes")
    try:
        document: Json = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise LoadFailed(f"{path} is not valid JSON: {error}") from None
    return document


async def load(node: Node, path: str) -> None:
    """Imports the files that `load_definitions` names, before clients are served. Raises LoadFailed; then the node does
    not start, as in RabbitMQ, since clients would find half of what they need."""
    for name in definition_files(path):
        document = read_document(name)
        version = document.get("rabbit_version") if isinstance(document, dict) else None
        task = Import(node, version=version)
        await task.check(document)
        if task.problems.count:
            raise LoadFailed("\n".join([f"definitions in {name} cannot be loaded:", *task.problems.told()]))
        await task.apply(lambda text: None)
        for note in task.notes.told():
            logger.warning("%s: %s", name, note)
        if task.failures.count:
            raise LoadFailed("\n".join([f"not all definitions in {name} could be loaded:", *task.failures.told()]))
        logger.info("loaded definitions from %s: %s", name, counted(task.done))


def counted(done: dict[str, int]) -> str:
    return ", ".join(f"{count} {section}" for section, count in done.items() if count) or "nothing was missing"


# -- Commands ------------------------------------------------------------------------------------------------------


@COMMANDS.add(RUNNING, id=TEXT, section=TEXT, text=TEXT)
async def stage_definitions(control: Control, id: str, section: str, text: str) -> None:
    """Keeps a part of a file: a JSON list of items of a section."""
    if section not in SECTIONS:
        raise Refused(DATA_ERROR, f"definitions have no section '{section}'")
    try:
        items = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(DATA_ERROR, f"not valid JSON: {error}") from None
    if not isinstance(items, list):
        raise Refused(DATA_ERROR, f"{section} must be a list")
    kept = control.desk.staged
    if id not in kept:
        _make_room(kept)
    staged = kept.setdefault(id, Staged())
    staged.parts += 1
    staged.characters += len(text)
    if staged.characters > DOCUMENT_BYTES_MAX:
        del kept[id]
        raise Refused(DATA_ERROR, f"definitions have at most {DOCUMENT_BYTES_MAX} bytes")
    staged.sections.setdefault(section, []).extend(items)


@COMMANDS.add(RUNNING, id=TEXT, parts=NUMBER, vhost=TEXT.or_none(), remarks=OBJECT)
async def import_definitions(control: Control, id: str, parts: int, vhost: str | None, remarks: dict[str, Any]) -> Any:
    """Imports the staged parts of a file. `remarks`: the other fields of the file."""
    staged = control.desk.staged.pop(id, Staged())
    if staged.parts != parts:
        raise Refused(UNAVAILABLE, "the node has not kept the whole file: too many are imported at a time. Try again")
    if vhost is not None and vhost not in control.node.metadata.vhosts:
        raise Refused(DATA_ERROR, f"Virtual host '{vhost}' does not exist")
    task = Import(control.node, vhost, remarks.get("rabbit_version"))
    await task.check({**remarks, **staged.sections}, vhost)
    if task.problems.count:
        raise Refused(DATA_ERROR, "\n".join([*task.problems.told(), "Nothing was imported."]))

    def say(text: str) -> None:
        control.progress = text

    await task.apply(say)
    return task.summary()


@COMMANDS.add(RUNNING, vhost=TEXT.or_none())
async def export_definitions(control: Control, vhost: str | None) -> Any:
    """Makes an export, to be fetched in parts. It shows one moment, however long fetching it takes."""
    metadata = control.node.metadata
    if vhost is not None and vhost not in metadata.vhosts:
        raise Refused(DATA_ERROR, f"Virtual host '{vhost}' does not exist")
    sections = definitions.gather(metadata, vhost)
    parts: list[str] = []
    piece: list[str] = []
    size = 0
    for number, text in enumerate(document_text(sections, vhost)):
        piece.append(text)
        size += len(text)
        if size >= PART_CHARACTERS:
            parts.append("".join(piece))
            piece, size = [], 0
        if number % SLICE == SLICE - 1:
            await asyncio.sleep(0)
    parts.append("".join(piece))
    _make_room(control.desk.exports)
    id = secrets.token_hex(8)
    control.desk.exports[id] = parts
    return {"id": id, "parts": len(parts)}


@COMMANDS.add(RUNNING, id=TEXT, number=NUMBER)
async def definitions_part(control: Control, id: str, number: int) -> Any:
    parts = control.desk.exports.get(id)
    if parts is None or not 0 <= number < len(parts):
        raise Refused(UNAVAILABLE, "that export is no longer kept: begin again")
    if number == len(parts) - 1:
        del control.desk.exports[id]
    return parts[number]


def _make_room(kept: dict[str, Any]) -> None:
    while len(kept) >= KEPT_MAX:
        del kept[next(iter(kept))]


def document_text(sections: Mapping[str, Iterable[Any]], vhost: str | None) -> Iterator[str]:
    """Yields the text of an export, one item in each line, so that two exports can be compared by eye."""
    head: dict[str, Json] = {
        "rabbit_version": definitions.RABBITMQ_VERSION,
        "rabbitmq_version": definitions.RABBITMQ_VERSION,
        "product_name": "Leveret",
        "product_version": __version__,
    }
    if vhost is not None:
        head["original_vhost_name"] = vhost
    yield "{" + ",".join(f"{_dumped(name)}:{_dumped(value)}" for name, value in head.items())
    for section, records in sections.items():
        yield f',\n"{section}":['
        for number, record in enumerate(records):
            yield f"{',' if number else ''}\n {_dumped(definitions.shown(record, whole=vhost is None))}"
        yield "]"
    yield "}\n"


def _dumped(value: Json) -> str:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # A name that is not UTF-8.
        return json.dumps(value, separators=(",", ":"))
    return text
