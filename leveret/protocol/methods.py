"""AMQP 0-9-1's methods with RabbitMQ's extensions, one class each, in the order of their ids.

Fields stand in wire order; those of requests have the defaults that clients use, so that a test writes only what
matters to it. In connection.close and channel.close the ids of the failed method are `failed_class_id` and
`failed_method_id`, because `class_id` and `method_id` are every method's own.

These classes are for the rare methods and for tests. Publish, deliver, get-ok and ack have faster paths in
`leveret.sessions.amqp`, with the same ids and layout.

`ticket`, `realm`, `insist`, `out_of_band`, `known_hosts`, `capabilities` and `cluster_id` are left over from AMQP 0-8:
they are on the wire and have no effect.
"""

from __future__ import annotations

from dataclasses import field
from typing import TypeAlias

from leveret.protocol import codec, tables
from leveret.protocol.codec import BOTH, CLIENT, SERVER, Bit, Long, LongLong, LongStr, Octet, Short, ShortStr, method

# Names that users of this module need besides the methods.
Table: TypeAlias = tables.Table
METHODS = codec.METHODS
Method = codec.Method
BadMethod = codec.BadMethod
UnknownMethod = codec.UnknownMethod
decode = codec.decode
decode_payload = codec.decode_payload
encode = codec.encode
encode_payload = codec.encode_payload


# Connection


@method(10, 10, SERVER)
class ConnectionStart(Method):
    version_major: Octet
    version_minor: Octet
    server_properties: Table
    mechanisms: LongStr
    locales: LongStr


@method(10, 11, CLIENT)
class ConnectionStartOk(Method):
    client_properties: Table
    mechanism: ShortStr
    response: LongStr
    locale: ShortStr


@method(10, 20, SERVER)
class ConnectionSecure(Method):
    challenge: LongStr


@method(10, 21, CLIENT)
class ConnectionSecureOk(Method):
    response: LongStr


@method(10, 30, SERVER)
class ConnectionTune(Method):
    channel_max: Short
    frame_max: Long
    heartbeat: Short


@method(10, 31, CLIENT)
class ConnectionTuneOk(Method):
    channel_max: Short
    frame_max: Long
    heartbeat: Short


@method(10, 40, CLIENT)
class ConnectionOpen(Method):
    virtual_host: ShortStr = "/"
    capabilities: ShortStr = ""
    insist: Bit = False


@method(10, 41, SERVER)
class ConnectionOpenOk(Method):
    known_hosts: ShortStr = ""


@method(10, 50, BOTH)
class ConnectionClose(Method):
    reply_code: Short
    reply_text: ShortStr
    failed_class_id: Short = 0
    failed_method_id: Short = 0


@method(10, 51, BOTH)
class ConnectionCloseOk(Method):
    pass


@method(10, 60, SERVER)
class ConnectionBlocked(Method):
    reason: ShortStr


@method(10, 61, SERVER)
class ConnectionUnblocked(Method):
    pass


@method(10, 70, CLIENT)
class ConnectionUpdateSecret(Method):
    new_secret: LongStr
    reason: ShortStr


@method(10, 71, SERVER)
class ConnectionUpdateSecretOk(Method):
    pass


# Channel


@method(20, 10, CLIENT)
class ChannelOpen(Method):
    out_of_band: ShortStr = ""


@method(20, 11, SERVER)
class ChannelOpenOk(Method):
    channel_id: LongStr = b""


@method(20, 20, BOTH)
class ChannelFlow(Method):
    active: Bit


@method(20, 21, BOTH)
class ChannelFlowOk(Method):
    active: Bit


@method(20, 40, BOTH)
class ChannelClose(Method):
    reply_code: Short
    reply_text: ShortStr
    failed_class_id: Short = 0
    failed_method_id: Short = 0


@method(20, 41, BOTH)
class ChannelCloseOk(Method):
    pass


# Access: of AMQP 0-8, still sent by old clients and answered with a ticket that has no effect


@method(30, 10, CLIENT)
class AccessRequest(Method):
    realm: ShortStr = "/data"
    exclusive: Bit = False
    passive: Bit = True
    active: Bit = True
    write: Bit = True
    read: Bit = True


@method(30, 11, SERVER)
class AccessRequestOk(Method):
    ticket: Short = 1


# Exchange


@method(40, 10, CLIENT)
class ExchangeDeclare(Method):
    ticket: Short = 0
    exchange: ShortStr = ""
    type: ShortStr = "direct"
    passive: Bit = False
    durable: Bit = False
    auto_delete: Bit = False
    internal: Bit = False
    nowait: Bit = False
    arguments: Table = field(default_factory=dict)


@method(40, 11, SERVER)
class ExchangeDeclareOk(Method):
    pass


@method(40, 20, CLIENT)
class ExchangeDelete(Method):
    ticket: Short = 0
    exchange: ShortStr = ""
    if_unused: Bit = False
    nowait: Bit = False


@method(40, 21, SERVER)
class ExchangeDeleteOk(Method):
    pass


@method(40, 30, CLIENT)
class ExchangeBind(Method):
    ticket: Short = 0
    destination: ShortStr = ""
    source: ShortStr = ""
    routing_key: ShortStr = ""
    nowait: Bit = False
    arguments: Table = field(default_factory=dict)


@method(40, 31, SERVER)
class ExchangeBindOk(Method):
    pass


@method(40, 40, CLIENT)
class ExchangeUnbind(Method):
    ticket: Short = 0
    destination: ShortStr = ""
    source: ShortStr = ""
    routing_key: ShortStr = ""
    nowait: Bit = False
    arguments: Table = field(default_factory=dict)


@method(40, 51, SERVER)
class ExchangeUnbindOk(Method):
    pass


# Queue


@method(50, 10, CLIENT)
class QueueDeclare(Method):
    ticket: Short = 0
    queue: ShortStr = ""
    passive: Bit = False
    durable: Bit = False
    exclusive: Bit = False
    auto_delete: Bit = False
    nowait: Bit = False
    arguments: Table = field(default_factory=dict)


@method(50, 11, SERVER)
class QueueDeclareOk(Method):
    queue: ShortStr
    message_count: Long
    consumer_count: Long


@method(50, 20, CLIENT)
class QueueBind(Method):
    ticket: Short = 0
    queue: ShortStr = ""
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    nowait: Bit = False
    arguments: Table = field(default_factory=dict)


@method(50, 21, SERVER)
class QueueBindOk(Method):
    pass


@method(50, 30, CLIENT)
class QueuePurge(Method):
    ticket: Short = 0
    queue: ShortStr = ""
    nowait: Bit = False


@method(50, 31, SERVER)
class QueuePurgeOk(Method):
    message_count: Long


@method(50, 40, CLIENT)
class QueueDelete(Method):
    ticket: Short = 0
    queue: ShortStr = ""
    if_unused: Bit = False
    if_empty: Bit = False
    nowait: Bit = False


@method(50, 41, SERVER)
class QueueDeleteOk(Method):
    message_count: Long


@method(50, 50, CLIENT)
class QueueUnbind(Method):
    ticket: Short = 0
    queue: ShortStr = ""
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    arguments: Table = field(default_factory=dict)


@method(50, 51, SERVER)
class QueueUnbindOk(Method):
    pass


# Basic


@method(60, 10, CLIENT)
class BasicQos(Method):
    prefetch_size: Long = 0
    prefetch_count: Short = 0
    global_: Bit = False


@method(60, 11, SERVER)
class BasicQosOk(Method):
    pass


@method(60, 20, CLIENT)
class BasicConsume(Method):
    ticket: Short = 0
    queue: ShortStr = ""
    consumer_tag: ShortStr = ""
    no_local: Bit = False
    no_ack: Bit = False
    exclusive: Bit = False
    nowait: Bit = False
    arguments: Table = field(default_factory=dict)


@method(60, 21, SERVER)
class BasicConsumeOk(Method):
    consumer_tag: ShortStr


@method(60, 30, BOTH)
class BasicCancel(Method):
    consumer_tag: ShortStr
    nowait: Bit = False


@method(60, 31, BOTH)
class BasicCancelOk(Method):
    consumer_tag: ShortStr


@method(60, 40, CLIENT, content=True)
class BasicPublish(Method):
    ticket: Short = 0
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    mandatory: Bit = False
    immediate: Bit = False


@method(60, 50, SERVER, content=True)
class BasicReturn(Method):
    reply_code: Short
    reply_text: ShortStr
    exchange: ShortStr
    routing_key: ShortStr


@method(60, 60, SERVER, content=True)
class BasicDeliver(Method):
    consumer_tag: ShortStr
    delivery_tag: LongLong
    redelivered: Bit
    exchange: ShortStr
    routing_key: ShortStr


@method(60, 70, CLIENT)
class BasicGet(Method):
    ticket: Short = 0
    queue: ShortStr = ""
    no_ack: Bit = False


@method(60, 71, SERVER, content=True)
class BasicGetOk(Method):
    delivery_tag: LongLong
    redelivered: Bit
    exchange: ShortStr
    routing_key: ShortStr
    message_count: Long


@method(60, 72, SERVER)
class BasicGetEmpty(Method):
    cluster_id: ShortStr = ""


@method(60, 80, BOTH)
class BasicAck(Method):
    delivery_tag: LongLong = 0
    multiple: Bit = False


@method(60, 90, CLIENT)
class BasicReject(Method):
    delivery_tag: LongLong
    requeue: Bit = True


@method(60, 100, CLIENT)
class BasicRecoverAsync(Method):
    requeue: Bit = False


@method(60, 110, CLIENT)
class BasicRecover(Method):
    requeue: Bit = False


@method(60, 111, SERVER)
class BasicRecoverOk(Method):
    pass


@method(60, 120, BOTH)
class BasicNack(Method):
    delivery_tag: LongLong = 0
    multiple: Bit = False
    requeue: Bit = True


# Confirm


@method(85, 10, CLIENT)
class ConfirmSelect(Method):
    nowait: Bit = False


@method(85, 11, SERVER)
class ConfirmSelectOk(Method):
    pass


# Tx


@method(90, 10, CLIENT)
class TxSelect(Method):
    pass


@method(90, 11, SERVER)
class TxSelectOk(Method):
    pass


@method(90, 20, CLIENT)
class TxCommit(Method):
    pass


@method(90, 21, SERVER)
class TxCommitOk(Method):
    pass


@method(90, 30, CLIENT)
class TxRollback(Method):
    pass


@method(90, 31, SERVER)
class TxRollbackOk(Method):
    pass
