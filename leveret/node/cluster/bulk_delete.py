"""A virtual host with very many queues is deleted in pieces; so are those of a node that is forgotten.

That a vhost is deleted is one command, and a command is applied in one pass of the event loop, at every node. With few
queues that is the best way: all of it is there, or nothing. With twenty thousand mirrored ones the pass takes seconds,
in which a node answers nobody, and other nodes take it for lost. So their queues go first, some at a time, as in
RabbitMQ, and what is left goes with the vhost: what was declared meanwhile, and queues that clients do not see.

If this node dies half-way, the vhost is there with fewer queues, and whoever wanted it deleted was not told that it is.
Likewise, a node that is half forgotten can be forgotten by whoever leads next.
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
    """Have the cluster agree on it; a refusal is in what is returned. Raises what `change` raises."""
    if metadata.queue_counts.get(name, 0) > AT_ONCE:
        queues = await picked(
            list(metadata.queues.values()), lambda spec: spec.vhost == name and not is_hidden_queue(spec.name)
        )
        for start in range(0, len(queues), AT_ONCE):
            batch = [c.DeleteQueue(name, spec.name, spec.id) for spec in queues[start : start + AT_ONCE]]
            for applied in await agree(cluster, batch):
                if applied.refused is not None and applied.refused.code != 404:  # 404: somebody else was faster.
                    return applied
    return await cluster.change(c.DeleteVhost(name))


async def forget_node(cluster: Agreeing, metadata: Metadata, name: str) -> Applied:
    """The same for what a node had. What somebody else changes meanwhile is left to the last command."""
    queues = await picked(list(metadata.queues.values()), lambda spec: has_copy(spec, name))
    if len(queues) > AT_ONCE:
        commands = [command for spec in queues if (command := _without_node(spec, name)) is not None]
        for start in range(0, len(commands), AT_ONCE):
            await agree(cluster, commands[start : start + AT_ONCE])
    return await cluster.change(c.ForgetNode(name))


def _without_node(spec: QueueSpec, node: str) -> c.Command | None:
    """What becomes of a queue when a node is gone for good, if that is sure by now: where another one has a copy that
    does not count, it may be made to."""
    if is_hidden_queue(spec.name):
        return None
    if spec.view is None or spec.view.ring == (node,):
        return c.DeleteQueue(spec.vhost, spec.name, spec.id)
    view = without(spec.view, node)
    return None if view is None else c.ChangeView(spec.vhost, spec.name, spec.id, view)
