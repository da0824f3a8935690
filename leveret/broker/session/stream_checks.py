"""What a session refuses of streams, in RabbitMQ's words.

A stream's reader is given messages as it acknowledges others, so it must acknowledge, and say how many it wants at a
time. Nothing can be taken out of a stream, or put back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.broker.delivery.offsets import NAME, ORIGINS, Start, parse_start
from leveret.broker.kinds.stream import unsupported
from leveret.broker.session.checks import Refused, refuse
from leveret.metadata.model.refusals import resource
from leveret.metadata.rules.ha_policy import is_stream
from leveret.protocol.erlang_format import printed_field
from leveret.protocol.errors import ReplyCode
from leveret.protocol.origins import NAME as ORIGIN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.broker.delivery.unacked import Delivered
    from leveret.metadata.model.records import QueueSpec
    from leveret.protocol.tables import Table


def refuse_for_stream(spec: QueueSpec, what: str) -> None:
    if is_stream(spec.arguments):
        raise Refused(unsupported(what, spec))


def refuse_return(taken: Iterable[Delivered], what: str) -> None:
    """Refuse to requeue deliveries that came from a stream."""
    for delivered in taken:
        refuse_for_stream(delivered.queue.spec, what)


def start_of(
    spec: QueueSpec, arguments: Table, prefetch: int, shared_prefetch: int, no_ack: bool, wall_ms: int
) -> Start | None:
    """Return where a consumer begins in a stream, or that it wants origins; None for others. Arguments were checked."""
    if not is_stream(spec.arguments):
        wanted = arguments.get(ORIGIN)
        return Start(ORIGINS) if wanted is not None and wanted.value is True and not no_ack else None
    where = resource("queue", spec.name, spec.vhost)
    if not prefetch:
        refuse(ReplyCode.PRECONDITION_FAILED, f"consumer prefetch count is not set for '{where}'")
    if no_ack:
        refuse_for_stream(spec, "automatic acknowledgement")
    if shared_prefetch:
        refuse(ReplyCode.NOT_IMPLEMENTED, f"{where} does not support global qos")
    offset = arguments.get(NAME)
    start = parse_start(offset, wall_ms)
    if start is None:
        # RabbitMQ ends the connection over some of these; a channel that is told why serves its client better.
        assert offset is not None
        text = f"invalid arg '{NAME}' for {where}: {{invalid_stream_offset_arg,{printed_field(offset)}}}"
        refuse(ReplyCode.PRECONDITION_FAILED, text)
    return start
