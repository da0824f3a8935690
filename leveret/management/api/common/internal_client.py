"""A client inside the node, for whoever publishes, gets, declares or binds over HTTP.

RabbitMQ's HTTP API answers with the replies of AMQP: their codes, names and texts, and its own for what AMQP cannot
express, such as a name of more than 255 bytes. So a request of that kind is done by a connection as any client has,
only that nothing lies between: frames are handed over in place of a socket. `broker.session` would do without
frames, but a connection without a socket is there anyway, for shovels (`node.shovels.direct`). It has the rights of the
user who asked over HTTP, and no other; it knows no password, for HTTP's has been checked.

It differs from a client's in three ways. It begins where a handshake ends. It is not counted against the limits of a
vhost, a user or the node, nor told of in the log: it lasts as long as a request, there are no more of them than HTTP
has connections, and an operator must be able to work where clients have used up theirs. And what it got and did not
settle goes back when the request is over, however it ends: if its client goes, or time runs out (`OPERATION_S`).
"""

from __future__ import annotations

import asyncio
import struct
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from leveret.management.http.http_messages import Problem, bad_request, not_found
from leveret.management.http.pause_check import check_serving
from leveret.node.sockets.amqp_socket import AmqpSocket
from leveret.protocol import methods as m
from leveret.protocol.frames import BODY, HEAD, HEADER, METHOD, OVERHEAD, content
from leveret.protocol.properties import Properties, decode, encode
from leveret.sessions.amqp.inner_connection import CHANNEL, InnerConnection
from leveret.sessions.peer import Peer

if TYPE_CHECKING:
    from leveret.management.http.http_messages import Request
    from leveret.node.node import Node

OPERATION_S: Final = 20.0
FRAME_MAX: Final = 131_072
CAPABILITIES: Final = ("publisher_confirms", "basic.nack")

M = TypeVar("M", bound=m.Method)


class Closed(Exception):
    """The broker has refused what was asked, by closing the channel or the connection."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        self.text = text  # With the code's name in front.

    @property
    def explanation(self) -> str:
        return self.text.partition(" - ")[2] or self.text


class Got(NamedTuple):
    """A message, as basic.get brings it."""

    ok: m.BasicGetOk
    properties: Properties
    body: bytes


class _Wire(asyncio.Transport):
    """Stands in for the socket: hands what the broker writes to the session."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.session.on_data(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.session.on_data(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.session.on_end()

    def abort(self) -> None:
        self.close()

    def pause_reading(self) -> None:
        """One thing is asked at a time, so there is nothing to hold back."""

    def resume_reading(self) -> None:
        """See there."""


class Session:
    """An open channel, for one request. Not to be shared: one question is asked at a time."""

    def __init__(self, node: Node, request: Request, vhost: str) -> None:
        self.node = node
        self._request = request
        self._vhost = vhost
        self._client = AmqpSocket(node)
        self._rest = b""
        self._answer: asyncio.Future[m.Method] | None = None
        self._content: list[bytes] = []  # Of the message that is being received: its header, then its body.
        self._left = 0
        self._ahead: m.Method | None = None  # The method that the content belongs to.
        self.returned = False  # A message that was published came back.

    async def __aenter__(self) -> Session:
        client, request = self._client, self._request
        check_serving(self.node)
        if self._vhost not in self.node.broker.vhosts:  # It was deleted while the body was read.
            raise not_found()
        client.transport = _Wire(self)
        peer = Peer(request.host, 0, "", 0, request.is_loopback)
        connection = InnerConnection(self.node.broker, peer, self.node.limits)
        client.connection = connection
        self.node.clients[client] = None
        self.node.by_output[connection.output] = client
        connection.open(request.user, self._vhost, FRAME_MAX, "HTTP API", CAPABILITIES)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.connection_lost(None)

    # -- What is asked -------------------------------------------------------------------------------------------

    async def ask(self, method: m.Method, wanted: type[M]) -> M:
        """The answer to a method. Raises Closed, or Problem if none comes."""
        answer = await self._ask(_encoded(method))
        assert isinstance(answer, wanted), answer
        return answer

    async def _ask(self, data: bytes) -> m.Method:
        self._answer = self.node.loop.create_future()
        self._client.data_received(data)
        try:
            async with asyncio.timeout(OPERATION_S):
                return await self._answer
        except TimeoutError:
            raise Problem(503, "service_unavailable", f"the broker did not answer within {OPERATION_S:g} s") from None
        finally:
            self._answer = None

    async def publish(self, exchange: str, key: str, properties: Properties, body: bytes) -> bool:
        """Publish with a confirm, and return whether it was routed. Raises Closed; Problem if it is refused."""
        await self.ask(m.ConfirmSelect(), m.ConfirmSelectOk)
        frames = _encoded_content(properties, body)
        answer = await self._ask(_encoded(m.BasicPublish(0, exchange, key, mandatory=True)) + frames)
        if isinstance(answer, m.BasicNack):
            raise bad_request("rejected Unable to publish message. Check queue limits.")
        return not self.returned

    async def get(self, queue: str) -> Got | None:
        answer = await self._ask(_encoded(m.BasicGet(0, queue)))
        if not isinstance(answer, m.BasicGetOk):
            return None
        header, body = self._content[0], b"".join(self._content[1:])
        self._content = []
        return Got(answer, decode(header), body)

    def say(self, method: m.Method) -> None:
        """Send a method that has no answer, such as an ack."""
        self._client.data_received(_encoded(method))

    # -- What comes ----------------------------------------------------------------------------------------------

    def on_data(self, data: bytes) -> None:
        data = self._rest + data
        at = 0
        while len(data) - at >= HEAD.size:
            kind, _, size = HEAD.unpack_from(data, at)
            end = at + size + OVERHEAD
            if len(data) < end:
                break
            self._on_frame(kind, data[at + HEAD.size : end - 1])
            at = end
        self._rest = data[at:]

    def _on_frame(self, kind: int, payload: bytes) -> None:
        if kind == METHOD:
            self._on_method(m.decode_payload(payload))
        elif kind == HEADER:
            self._content = [payload]
            self._left = int.from_bytes(payload[4:12], "big")
        elif kind == BODY:
            self._content.append(payload)
            self._left -= len(payload)
        if kind in (HEADER, BODY) and not self._left and self._ahead is not None:
            method, self._ahead = self._ahead, None
            if isinstance(method, m.BasicReturn):
                self.returned = True
            else:
                self._resolve(method)

    def _on_method(self, method: m.Method) -> None:
        if isinstance(method, m.BasicGetOk | m.BasicReturn):
            self._ahead = method
        elif isinstance(method, m.ChannelClose | m.ConnectionClose):
            self._fail(Closed(method.reply_code, method.reply_text))
        elif not isinstance(method, m.ConnectionBlocked | m.ConnectionUnblocked | m.BasicCancel):
            self._resolve(method)

    def on_end(self) -> None:
        self._fail(Closed(320, "CONNECTION_FORCED - the node closes"))

    def _resolve(self, method: m.Method) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(method)

    def _fail(self, error: Closed) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


# JSON can say what AMQP cannot: names of more than 255 bytes, halves of characters.


def _encoded(method: m.Method) -> bytes:
    """Raises Problem."""
    try:
        return m.encode(CHANNEL, method)
    except (ValueError, OverflowError, struct.error) as error:
        raise bad_request(f"AMQP has no way to say that: {error}") from None


def _encoded_content(properties: Properties, body: bytes) -> bytes:
    """Raises Problem."""
    try:
        return content(encode(properties, len(body)), body, FRAME_MAX, CHANNEL)
    except (ValueError, OverflowError, struct.error) as error:
        raise bad_request(f"AMQP has no way to say that: {error}") from None
