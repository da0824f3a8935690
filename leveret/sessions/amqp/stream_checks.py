"""What a channel refuses of streams, in RabbitMQ's words.

A stream's reader is given messages as it acknowledges others, so it must acknowledge, and say how many it wants at a
time. Nothing can be taken out of a stream, or put back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.broker.delivery.offsets import NAME, Start, parse_start
from leveret.broker.kinds.stream import unsupported
from leveret.metadata.rules.ha_policy import is_stream
from leveret.protocol.erlang_format import printed_field
from leveret.protocol.errors import ReplyCode, protocol_error, resource

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.broker.delivery.unacked import Delivered
    from leveret.metadata.model.records import QueueSpec
    from leveret.protocol import methods as m
    from leveret.sessions.amqp.channel import Channel


def refuse_for_stream(spec: QueueSpec, what: str, method: m.Method | type[m.Method]) -> None:
    if is_stream(spec.arguments):
        raise protocol_error(ReplyCode.NOT_IMPLEMENTED, unsupported(what, spec).text, method)


def refuse_return(taken: Iterable[Delivered], what: str, method: m.Method | type[m.Method]) -> None:
    """What a client wants to give back was delivered from these queues."""
    for delivered in taken:
        refuse_for_stream(delivered.queue.spec, what, method)


def start_of(channel: Channel, spec: QueueSpec, method: m.BasicConsume) -> Start | None:
    """Where a consumer begins in a stream; None if the queue is none. Its arguments were checked."""
    if not is_stream(spec.arguments):
        return None
    where = resource("queue", spec.name, spec.vhost)
    if not channel.new_consumer_prefetch:
        text = f"consumer prefetch count is not set for '{where}'"
        raise protocol_error(ReplyCode.PRECONDITION_FAILED, text, method)
    if method.no_ack:
        refuse_for_stream(spec, "automatic acknowledgement", method)
    if channel.prefetch:
        raise protocol_error(ReplyCode.NOT_IMPLEMENTED, f"{where} does not support global qos", method)
    offset = method.arguments.get(NAME)
    start = parse_start(offset, channel.broker.wall_ms)
    if start is None:
        # RabbitMQ ends the connection over some of these; a channel that is told why serves its client better.
        assert offset is not None
        text = f"invalid arg '{NAME}' for {where}: {{invalid_stream_offset_arg,{printed_field(offset)}}}"
        raise protocol_error(ReplyCode.PRECONDITION_FAILED, text, method)
    return start
