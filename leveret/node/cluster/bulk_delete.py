"""Deletes very many queues in portions: those of a vhost that is deleted, and those of a node that is forgotten.

The deletion of a vhost is one command, and a command is applied in one pass of the event loop, at every node. With few
queues that is the best way: either the whole vhost is there, or nothing of it. With twenty thousand mirrored queues the
pass takes seconds, in which a node answers nobody, and other nodes take it for lost. So the queues are deleted first,
some at a time, as in RabbitMQ, and the rest is deleted with the vhost: queues declared meanwhile, and hidden queues.

If this node dies half-way, the vhost is there with fewer queues, and the caller got no answer. Likewise, a node that is
half forgotten can be forgotten again by the next leader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.metadata.model import commands as c
from leveret.metadata.model.hidden_queues import is_hidden_queue
from leveret.metadata.model.queue_location import has_copy
from leveret.metadata.model.view import without
from leveret.node.cluster.paced_commands import AT_ONCE, Agreeing, agree
from leveret.node.system.time_slices import picked

if TYPE_CHECKING:
    from leveret.metadata.model.records import QueueSpec
    from leveret.metadata.store import Applied, Metadata


async def delete_vhost(cluster: Agreeing, metadata: Metadata, name: str) -> Applied:
    """Deletes a vhost in the whole cluster. A refusal is in the result. Raises what `change` raises."""
    if metadata.queue_counts.get(name, 0) > AT_ONCE:
        queues = await picked(
            list(metadata.queues.values()), lambda spec: spec.vhost == name and not is_hidden_queue(spec.name)
        )
        for start in range(0, len(queues), AT_ONCE):
            batch = [c.DeleteQueue(name, spec.name, spec.id) for spec in queues[start : start + AT_ONCE]]
            for applied in await agree(cluster, batch):
                if applied.refused is not None and applied.refused.code != 404:  # 404: somebody else has deleted it.
                    return applied
    return await cluster.change(c.DeleteVhost(name))


async def forget_node(cluster: Agreeing, metadata: Metadata, name: str) -> Applied:
    """Deletes the copies that a forgotten node had. Queues that others change meanwhile are left to the last command,
    whose result is returned."""
    queues = await picked(list(metadata.queues.values()), lambda spec: has_copy(spec, name))
    if len(queues) > AT_ONCE:
        commands = [command for spec in queues if (command := _without_node(spec, name)) is not None]
        for start in range(0, len(commands), AT_ONCE):
            await agree(cluster, commands[start : start + AT_ONCE])
    return await cluster.change(c.ForgetNode(name))


def _without_node(spec: QueueSpec, node: str) -> c.Command | None:
    """Returns the command that takes a node's copy from a queue, None if that is left to `ForgetNode`: for hidden
    queues, and where another node has a copy that is not in sync and may have to be promoted."""
    if is_hidden_queue(spec.name):
        return None
    if spec.view is None or spec.view.ring == (node,):
        return c.DeleteQueue(spec.vhost, spec.name, spec.id)
    view = without(spec.view, node)
    return None if view is None else c.ChangeView(spec.vhost, spec.name, spec.id, view)
