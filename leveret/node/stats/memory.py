"""The memory breakdown of the process, by RabbitMQ's categories.

Bytes of messages, buffers and references are counted as they come and go. Objects are counted and multiplied by the
size of one of them, measured once. The memory that the process had before it opened its log is the interpreter, its
libraries, and our code. `malloc` says how much it keeps though it was freed (`leveret.node.system.allocator`). The rest
is `other`: objects that are not listed here, and the free places in Python's own arenas.

| part | |
|---|---|
| `binary` | messages in memory: contents, each once however many queues have it, and their places in each queue |
| `queue_procs` | queues, those of other nodes too, without their messages |
| `queue_slave_procs` | copies of mirrored queues, and blocks that wait for the ring |
| `msg_index` | where the log has which message, and what waits to be written |
| `connection_readers`, `connection_writers` | input that is not processed yet, output that is not taken yet |
| `connection_channels`, `connection_other` | channels with what is out on them, connections |
| `mnesia` | metadata: queues, exchanges, bindings and the routes made of them |
| `code` | the interpreter and all modules |
| `allocated_unused` | freed, and not yet given back to the system |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.node.system.time_slices import TimeSlices

if TYPE_CHECKING:
    from leveret.node.admin.common.command import Node

QUEUE_BYTES: Final = 2_000  # The approximate size of a queue without messages.
MIRROR_BYTES: Final = 6_000
QUEUE_LOG_BYTES: Final = 1_500
REFERENCE_BYTES: Final = 40
CONNECTION_BYTES: Final = 5_800
CHANNEL_BYTES: Final = 1_000
QUEUE_SPEC_BYTES: Final = 1_200
EXCHANGE_BYTES: Final = 800
BINDING_BYTES: Final = 700
ROUTE_BYTES: Final = 500


async def memory_parts(node: Node) -> dict[str, int]:
    """Returns the sizes by the names above. Works in slices, for there may be very many queues."""
    broker, slices = node.broker, TimeSlices()
    parts = dict.fromkeys(
        (
            "binary", "queue_procs", "queue_slave_procs", "msg_index", "connection_readers", "connection_writers",
            "connection_channels", "connection_other", "mnesia", "code", "allocated_unused",
        ),
        0,
    )  # fmt: skip
    parts["binary"] = broker.content_bytes + broker.uncommitted_bytes
    parts["queue_procs"] = QUEUE_BYTES * len(broker.queues_by_id)
    for mirror in list(broker.mirrors):
        tail = mirror.member.tail
        parts["queue_slave_procs"] += MIRROR_BYTES + tail.bytes_between(tail.base, tail.end)
        if slices.is_over():
            await slices.rest()
    log = node.storage.log
    parts["msg_index"] = log.pending_bytes
    for state in list(log.queues.values()):
        parts["msg_index"] += QUEUE_LOG_BYTES + REFERENCE_BYTES * (len(state.refs) + len(state.spill_refs))
        if slices.is_over():
            await slices.rest()
    for client in list(node.clients):
        connection = client.connection
        parts["connection_readers"] += len(connection.rest)
        parts["connection_writers"] += client.transport.get_write_buffer_size()
        parts["connection_channels"] += CHANNEL_BYTES * len(connection.channels)
        parts["connection_other"] += CONNECTION_BYTES
        if slices.is_over():
            await slices.rest()
    metadata = node.metadata
    parts["mnesia"] = (
        QUEUE_SPEC_BYTES * len(metadata.queues)
        + EXCHANGE_BYTES * len(metadata.exchanges)
        + BINDING_BYTES * len(metadata.bindings)
        + ROUTE_BYTES * sum(len(vhost.routes) for vhost in broker.vhosts.values())
    )
    parts["code"] = node.started_bytes
    parts["allocated_unused"] = node.memory_unused()
    return parts


def named_for_tools(parts: dict[str, int]) -> dict[str, int]:
    """Returns the parts under the names of the command line tools, where the rest is `other`."""
    return {"other" if name == "other_system" else name: size for name, size in parts.items()}


async def breakdown(node: Node) -> tuple[dict[str, int], int]:
    """Returns all parts, the largest first, with the rest as `other_system`; and the memory of the process."""
    parts = await memory_parts(node)
    node.alarms.check()
    used = node.alarms.memory_used_bytes
    parts["other_system"] = max(0, used - sum(parts.values()))
    return dict(sorted(parts.items(), key=lambda part: -part[1])), used
