"""Control commands about queues: list, delete, purge.

A queue's figures are known where its master is. So a list goes through the queues that the metadata holds, page by page
and in the order in which they were declared, and asks for each page those nodes that have some of them. (To go from
node to node would miss a queue, or show it twice, whose master changes meanwhile.) One whose node does not answer is
shown from the metadata, in state `down`. Who mirrors it, and which copies are synchronised, is in
the metadata as well, and therefore the same wherever it is asked. RabbitMQ shows mirrors that run and no others; the
rest of the ring is in `recoverable_mirrors`.

How far a mirror has come that is being filled is known only there, hence one more question to each node that has such
a mirror, if somebody wants to see it (`sync_messages`).
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Callable
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from leveret.base.control_protocol import VALIDATION
from leveret.base.exit_codes import UNAVAILABLE, USAGE
from leveret.broker.client_log import CONNECTION_PID
from leveret.broker.delivery.batch import Gap
from leveret.broker.kinds.stream import unsupported
from leveret.broker.mirrors import status
from leveret.broker.queue.local_queue import LocalQueue
from leveret.broker.queue.queue import Queue
from leveret.broker.session.arguments import CLASSIC
from leveret.metadata.model.commands import DeleteQueue
from leveret.metadata.model.hidden_queues import is_hidden_queue
from leveret.metadata.rules.ha_policy import is_quorum, is_stream
from leveret.node.admin.common import listing_columns as columns_
from leveret.node.admin.common.command import FLAG, NUMBERS, OBJECT, RUNNING, TEXT, TEXTS, Commands, NoAnswer, Refused
from leveret.node.admin.queues import lists
from leveret.node.admin.queues.lists import (
    Getter,
    Rows,
    channel_pid_of,
    check_columns,
    page,
    pid,
    running_nodes,
    shown_table,
)
from leveret.node.stats.queue_rows import capacity, head_timestamp, message_count, sizes
from leveret.node.system.time_slices import TimeSlices, in_order, picked

if TYPE_CHECKING:
    from leveret.metadata.model.records import QueueSpec
    from leveret.metadata.rules.policies import Effective
    from leveret.node.admin.dispatch import Control

COMMANDS = Commands()
SIZES: Final = (
    "messages_unacknowledged_ram", "messages_ram", "messages_persistent", "message_bytes", "message_bytes_ready",
    "message_bytes_unacknowledged", "message_bytes_ram", "message_bytes_persistent",
)  # fmt: skip

# -- Columns -------------------------------------------------------------------------------------------------------


def _owner_pid(control: Control, spec: QueueSpec) -> str:
    node, _, number = (spec.owner or "").rpartition(".")
    return pid(node, CONNECTION_PID, int(number)) if number.isdecimal() else ""


def _exclusive_consumer(spec_and_queue: tuple[QueueSpec, Any]) -> Any:
    return None if spec_and_queue[1] is None else spec_and_queue[1].exclusive_consumer


def _counted(read: Callable[[Any], Any]) -> Getter:
    """A figure that only the node of a queue knows; elsewhere it is empty, as in RabbitMQ."""
    return lambda control, pair: "" if pair[1] is None else read(pair[1])


def _on_disk(queue: LocalQueue) -> int:
    return sum(one.count for one in queue.ready if isinstance(one, Gap)) if isinstance(queue, Queue) else 0


def _state(control: Control, pair: tuple[QueueSpec, LocalQueue | None]) -> str:
    queue = pair[1]
    if queue is None:
        return status.DOWN
    return status.RUNNING if queue.mirror is None else status.state(queue.mirror)


def _idle_since(control: Control, queue: LocalQueue) -> str:
    """Returns when the queue was last used; if it never was, when it was declared, or its node was started."""
    idle_s = time.monotonic() - control.started_s
    if since_ms := queue.active_ms or queue.born_ms:
        idle_s = asyncio.get_running_loop().time() - since_ms / 1000
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time.time() - idle_s))


def mirror_nodes(control: Control, spec: QueueSpec, in_sync: bool = False) -> list[str] | None:
    """Returns the running nodes that have a mirror of the queue, or a synchronised one; None if it is not mirrored."""
    if spec.view is None:
        return None
    running = running_nodes(control)
    there = [name for name, _ in spec.view.in_sync] if in_sync else spec.view.order()
    return [name for name in there if name != spec.node and name in running]


def _mirror_pids(in_sync: bool) -> Getter:
    def read(control: Control, pair: tuple[QueueSpec, Any]) -> Any:
        nodes = mirror_nodes(control, pair[0], in_sync)
        return "" if nodes is None else [status.copy_pid(name, pair[0].id) for name in nodes]

    return read


def _recoverable(control: Control, pair: tuple[QueueSpec, Any]) -> Any:
    spec = pair[0]
    return "" if spec.view is None else [name for name in spec.view.order() if name != spec.node]


def _policies(control: Control, spec: QueueSpec) -> Effective:
    return control.policies.of_queue(spec.vhost, spec.name, spec.arguments)


def _has_members(spec: QueueSpec) -> bool:
    """Returns whether the queue is of a type that RabbitMQ shows with members; mirrors of others have other columns."""
    return is_quorum(spec.arguments) or is_stream(spec.arguments)


def _members(control: Control, spec: QueueSpec, online: bool) -> Any:
    if not _has_members(spec):
        return ""
    members = [spec.node] if spec.view is None else spec.view.order()
    running = running_nodes(control)
    return [name for name in members if name in running or not online]


def _mirror_node_names(control: Control, pair: tuple[QueueSpec, Any]) -> Any:
    nodes = mirror_nodes(control, pair[0])
    return "" if nodes is None else nodes


def _capacity(control: Control, pair: tuple[QueueSpec, LocalQueue | None]) -> Any:
    return "" if pair[1] is None else capacity(control, pair[1])


def _size(name: str) -> Getter:
    return lambda control, pair: "" if pair[1] is None else sizes(control, pair[1])[name]


# Of a specification and the queue itself, which is None where the queue is not here.
QUEUE: Final[dict[str, Getter]] = {
    "name": lambda control, pair: pair[0].name,
    "durable": lambda control, pair: pair[0].durable,
    "auto_delete": lambda control, pair: pair[0].auto_delete,
    "arguments": lambda control, pair: shown_table(pair[0].arguments),
    "policy": lambda control, pair: _policies(control, pair[0]).policy or "",
    "operator_policy": lambda control, pair: _policies(control, pair[0]).operator_policy or "",
    "effective_policy_definition": lambda control, pair: _policies(control, pair[0]).definition,
    "pid": lambda control, pair: status.copy_pid(pair[0].node, pair[0].id),
    "owner_pid": lambda control, pair: _owner_pid(control, pair[0]),
    "exclusive": lambda control, pair: pair[0].exclusive,
    "exclusive_consumer_pid": lambda control, pair: channel_pid_of(control, _exclusive_consumer(pair)),
    "exclusive_consumer_tag": lambda control, pair: getattr(_exclusive_consumer(pair), "tag", ""),
    "messages_ready": _counted(lambda queue: queue.ready_count),
    "messages_unacknowledged": _counted(lambda queue: queue.unacked_count),
    "messages": lambda control, pair: "" if pair[1] is None else message_count(control, pair[1]),
    "messages_ready_ram": _counted(lambda queue: queue.ready_count - _on_disk(queue)),
    "messages_ready_disk": _counted(_on_disk),
    "disk_reads": _counted(lambda queue: queue.totals.read),
    "disk_writes": _counted(lambda queue: queue.totals.written),
    "head_message_timestamp": _counted(lambda queue: "" if (at := head_timestamp(queue)) is None else at),
    "consumers": _counted(lambda queue: len(queue.consumers)),
    "consumer_utilisation": _capacity,
    "consumer_capacity": _capacity,
    "memory": _counted(lambda queue: queue.memory_bytes),
    "idle_since": lambda control, pair: "" if pair[1] is None else _idle_since(control, pair[1]),
    "state": _state,
    "type": lambda control, pair: pair[0].arguments.get("x-queue-type", CLASSIC).value,
    "node": lambda control, pair: pair[0].node,
    "leader": lambda control, pair: pair[0].node if _has_members(pair[0]) else "",
    "members": lambda control, pair: _members(control, pair[0], online=False),
    "online": lambda control, pair: _members(control, pair[0], online=True),
    "slave_pids": _mirror_pids(in_sync=False),
    "synchronised_slave_pids": _mirror_pids(in_sync=True),
    "mirror_pids": _mirror_pids(in_sync=False),
    "synchronised_mirror_pids": _mirror_pids(in_sync=True),
    "master_node": lambda control, pair: pair[0].node,
    "queue_slave_nodes": _mirror_node_names,
    "recoverable_mirrors": _recoverable,
    "recoverable_slaves": _recoverable,
    "sync_messages": lambda control, pair: "",  # Only the mirrors know it: see `_add_progress`.
    **{name: _size(name) for name in SIZES},
}


# -- Listing -------------------------------------------------------------------------------------------------------


@COMMANDS.add(
    RUNNING,
    vhost=TEXT,
    columns=TEXTS,
    only=TEXT.or_none(),
    online=FLAG.or_none(),
    offline=FLAG.or_none(),
    local=FLAG.or_none(),
    after=OBJECT.or_none(),
)
async def list_queues(
    control: Control,
    vhost: str,
    columns: list[str],
    only: str | None,
    online: bool | None,
    offline: bool | None,
    local: bool | None,
    after: dict[str, Any] | None,
) -> Any:
    """Returns a page of rows. `only`: the name of a single queue, which was given in the place of a column."""
    check_columns(columns, columns_.QUEUES)
    specs = control.node.metadata.queues
    if only is not None and (vhost, only) not in specs and after is None:
        unknown = sorted({name for name in only.split(",") if name not in columns_.QUEUES})
        text = f"Info key(s) {','.join(unknown)} are not supported"
        if len(unknown) == 1:
            text += f", and there is no such queue in vhost '{vhost}'"
        raise Refused(USAGE, text, VALIDATION)
    running = running_nodes(control)

    def fits(spec: QueueSpec) -> bool:
        if spec.vhost != vhost or only not in (None, spec.name):
            return False
        if local:
            return spec.node == control.name
        return online == offline or (spec.node in running) == bool(online)

    found, following = await queue_page(control, fits, position(after))
    told, missing = await ask_homes(control, found, "local_queues", {"columns": columns})
    rows = []
    for spec in found:
        now = specs.get((vhost, spec.name), spec)
        row = told.get(spec.id)
        rows.append(row if row is not None else [QUEUE[name](control, (now, None)) for name in columns])
    if "sync_messages" in columns:
        await _add_progress(control, found, rows, columns.index("sync_messages"))
    return page(rows, following_cursor(following), missing)


async def queue_page(
    control: Control, fits: Callable[[QueueSpec], bool], after: int, most: int | None = None
) -> tuple[list[QueueSpec], int | None]:
    """Returns the queues that fit, with numbers above `after`, and the number to go on with. Hidden queues are left
    out.

    The sorted list that was made for the first page is used for the next ones, unless the metadata have changed; then
    it is made again, in slices: with a hundred thousand queues it would otherwise stop the node for as long as some
    pages take.
    """
    metadata, known = control.node.metadata, control.queues_in_order
    most = lists.PAGE if most is None else most
    if known is None or known[0] is not metadata or known[1] != metadata.index:
        index = metadata.index
        there = await picked(list(metadata.queues.values()), lambda spec: not is_hidden_queue(spec.name))
        known = control.queues_in_order = (metadata, index, await in_order(there, _number))
    found: list[QueueSpec] = []
    start = bisect_right(known[2], after, key=_number)
    async for spec in TimeSlices().each(islice(known[2], start, None)):
        if fits(spec):
            if len(found) == most:
                return found, found[-1].id
            found.append(spec)
    return found, None


_number: Final = attrgetter("id")


def position(after: dict[str, Any] | None) -> int:
    """Returns the position in a cursor. Lists go by the numbers of queues, which stay the same when masters move."""
    if after is None:
        return 0
    number = after.get("after")
    if isinstance(number, bool) or not isinstance(number, int):
        raise Refused(USAGE, "argument after is not a cursor")
    return number


def following_cursor(number: int | None) -> dict[str, int] | None:
    return None if number is None else {"after": number}


async def ask_homes(
    control: Control, specs: list[QueueSpec], command: str, arguments: dict[str, Any]
) -> tuple[dict[int, Any], list[str]]:
    """Returns the answers of the masters' nodes about these queues, by the queue's number; and the running nodes that
    did not answer.

    Where a queue was not found, its present node is asked once more: its master may have changed while the question was
    under way. The answer of a node that was lost before all had answered is left out, since it has no masters any more.
    """
    async def at(name: str, numbers: list[int]) -> dict[str, Any] | None:
        try:
            answer: dict[str, Any] = await control.at(name, command, {**arguments, "queues": numbers})
            return answer
        except (NoAnswer, Refused):
            return None

    found: dict[int, Any] = {}
    silent: dict[str, None] = {}
    asked: dict[int, str] = {}
    for _ in range(2):
        homes: dict[str, list[int]] = {}
        for spec in specs:
            now = control.node.metadata.queues.get((spec.vhost, spec.name))
            if now is not None and spec.id not in found and asked.get(spec.id) != now.node:
                homes.setdefault(now.node, []).append(spec.id)
                asked[spec.id] = now.node
        for name, answer in zip(homes, await asyncio.gather(*(at(*one) for one in homes.items())), strict=True):
            if answer is None:
                silent[name] = None
            else:
                found |= {int(number): told for number, told in answer.items()}
    running = running_nodes(control)
    found = {number: told for number, told in found.items() if asked[number] in running}
    return found, [name for name in silent if name in running]


@COMMANDS.add(RUNNING, queues=NUMBERS, columns=TEXTS)
async def local_queues(control: Control, queues: list[int], columns: list[str]) -> Any:
    """Returns the rows of those of these queues whose master is here."""
    check_columns(columns, columns_.QUEUES)
    found = {}
    async for number in TimeSlices(steps=4).each(queues):
        queue = control.node.broker.queues_by_id.get(number)
        if isinstance(queue, LocalQueue):
            found[str(number)] = [QUEUE[name](control, (queue.spec, queue)) for name in columns]
    return found


async def _add_progress(control: Control, specs: list[QueueSpec], rows: Rows, place: int) -> None:
    """Fills in `sync_messages`: the figure of the mirror that has the fewest."""
    wanted: dict[str, list[int]] = {}
    numbers: dict[int, list[Any]] = {}
    for spec, row in zip(specs, rows, strict=True):
        for name in mirror_nodes(control, spec) or ():
            assert spec.view is not None
            if spec.view.disk_of(name) is None:
                wanted.setdefault(name, []).append(spec.id)
                numbers[spec.id] = row
    answers = await asyncio.gather(*(copies(control, name, ids) for name, ids in wanted.items()))
    for found in answers:
        for number, copy in found.items():
            if copy["filling"]:
                row = numbers[number]
                row[place] = copy["messages"] if row[place] == "" else min(row[place], copy["messages"])


async def copies(control: Control, name: str, numbers: list[int]) -> dict[int, dict[str, Any]]:
    """Returns what a node says of its copies of these queues; nothing if it does not answer."""
    try:
        answer = await control.at(name, "local_copies", {"queues": numbers})
    except (NoAnswer, Refused):
        return {}
    return {int(number): copy for number, copy in answer.items()}


@COMMANDS.add(RUNNING, queues=NUMBERS)
async def local_copies(control: Control, queues: list[int]) -> Any:
    """Returns what this node's copies of mirrored queues hold, by the queues' ids."""
    mirrors = control.node.broker.mirrors
    found = {}
    for number in queues:
        mirror = mirrors.mirrors.get(number)
        if mirror is not None and mirrors.store is not None:
            copy = status.own_copy(mirror, mirrors.store)._asdict()
            if mirror.queue is not None:
                copy["messages"] = mirror.queue.ready_count + mirror.queue.unacked_count
            found[str(number)] = copy
    return found


# -- One queue -----------------------------------------------------------------------------------------------------


def queue_spec(control: Control, vhost: str, name: str, code: int, text: str) -> QueueSpec:
    spec = control.node.metadata.queues.get((vhost, name))
    if spec is None or is_hidden_queue(name):
        raise Refused(code, text)
    return spec


async def at_home(control: Control, spec: QueueSpec, command: str, arguments: dict[str, Any]) -> Any:
    try:
        return await control.at(spec.node, command, arguments)
    except NoAnswer as error:
        what = "durable queue" if spec.durable else "queue"
        text = f"home node '{spec.node}' of {what} '{spec.name}' in vhost '{spec.vhost}' is down or inaccessible"
        raise Refused(UNAVAILABLE, f"{text} ({error})") from None


def queue_here(control: Control, spec: QueueSpec) -> LocalQueue:
    queue = control.node.broker.vhosts[spec.vhost].queues[spec.name]
    if not isinstance(queue, LocalQueue):  # Its master moved while the question was on its way.
        raise Refused(UNAVAILABLE, f"queue '{spec.name}' in vhost '{spec.vhost}' is at {spec.node} now; try again")
    return queue


@COMMANDS.add(RUNNING, vhost=TEXT, name=TEXT, if_empty=FLAG, if_unused=FLAG)
async def delete_queue(control: Control, vhost: str, name: str, if_empty: bool, if_unused: bool) -> Any:
    spec = queue_spec(control, vhost, name, USAGE, "Queue not found")
    member = control.member(spec.node)
    if not if_empty and not if_unused and (member is None or not member.running):
        # Its node is down: the queue can be deleted all the same.
        await control.change(DeleteQueue(vhost, name, spec.id))
        return {"messages": 0, "counted": False}
    arguments = {"vhost": vhost, "name": name, "if_empty": if_empty, "if_unused": if_unused}
    return await at_home(control, spec, "local_delete_queue", arguments)


@COMMANDS.add(RUNNING, vhost=TEXT, name=TEXT, if_empty=FLAG, if_unused=FLAG)
async def local_delete_queue(control: Control, vhost: str, name: str, if_empty: bool, if_unused: bool) -> Any:
    spec = queue_spec(control, vhost, name, USAGE, "Queue not found")
    queue = queue_here(control, spec)
    if if_unused and queue.consumers:
        raise Refused(USAGE, "Queue is in use")
    if if_empty and queue.ready_count:
        raise Refused(USAGE, "Queue is not empty")
    messages = queue.ready_count
    await control.change(DeleteQueue(vhost, name, spec.id))
    return {"messages": messages}


@COMMANDS.add(RUNNING, vhost=TEXT, name=TEXT)
async def purge_queue(control: Control, vhost: str, name: str) -> Any:
    spec = queue_spec(control, vhost, name, UNAVAILABLE, "not_found")
    return await at_home(control, spec, "local_purge_queue", {"vhost": vhost, "name": name})


@COMMANDS.add(RUNNING, vhost=TEXT, name=TEXT)
async def local_purge_queue(control: Control, vhost: str, name: str) -> Any:
    queue = queue_here(control, queue_spec(control, vhost, name, UNAVAILABLE, "not_found"))
    if not isinstance(queue, Queue):
        raise Refused(UNAVAILABLE, unsupported("queue.purge", queue.spec).text)
    count = queue.purge()
    control.node.schedule()
    return {"messages": count}
