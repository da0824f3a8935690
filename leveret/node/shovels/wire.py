"""A connection of the client beside the node's event loop: moves bytes between a transport and `ClientMachine`."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, cast

from leveret.client import tls
from leveret.client.address import Address
from leveret.client.machine import BundleDelivery, ClientMachine, Closed, Delivery
from leveret.node.shovels import direct

if TYPE_CHECKING:
    from leveret.client.amqp import Name, Table
    from leveret.metadata.shovel.uris import AmqpUri
    from leveret.node.node import Node

logger = logging.getLogger("leveret.shovel")

UNSENT_BYTES_MAX: Final = 1 << 20
CALL_S: Final = 30.0
TICK_S: Final = 0.5
PRODUCT: Final = "Leveret"


class Owner(Protocol):
    """A link, which is told what happens at its two ends."""

    def on_deliveries(self, wire: Wire, deliveries: list[Delivery]) -> None: ...

    def on_bundle(self, wire: Wire, delivery: BundleDelivery) -> None: ...

    def on_confirm(self, wire: Wire, number: int, multiple: bool, refused: bool) -> None: ...

    def on_input(self, wire: Wire) -> None:
        """All of a piece of input has been handled."""

    def on_writable(self, wire: Wire, is_writable: bool) -> None: ...

    def on_blocked(self, wire: Wire, reason: str | None) -> None: ...

    def on_failed(self, wire: Wire, text: str) -> None:
        """The connection is over, or can do no more."""


class Wire(asyncio.Protocol):
    """One connection with channel 1 open, made by `connect`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, uri: AmqpUri, end: str) -> None:
        self.loop = loop
        self.uri = uri
        self.end = end  # For people: source or destination.
        self.owner: Owner | None = None  # From when it is set up.
        self.machine: ClientMachine
        self.transport: asyncio.Transport | None = None
        self.opened: asyncio.Future[None] = loop.create_future()
        self.error: Closed | None = None
        self.blocked_reason: str | None = None  # Why the broker takes no publishes; None: it does.
        self.ticker: asyncio.TimerHandle | None = None
        self.ticked_at = loop.time()
        self.is_listening = True

    # -- Calls by the transport ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self.machine.is_over:  # The worker was stopped while the connection was being made.
            self.transport.abort()
            return
        self.transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        self.machine.start()
        self.flush()

    def data_received(self, data: bytes) -> None:
        try:
            self.machine.receive(data)
            if self.owner is not None:
                self.owner.on_input(self)
        except Exception as error:  # A bug must end this link only, and be logged.
            logger.exception("%s %s: internal error", self.end, self.uri.text)
            self.machine.on_lost(f"internal error: {error!r}")
        self.flush()

    def pause_writing(self) -> None:
        if self.owner is not None:
            self.owner.on_writable(self, False)

    def resume_writing(self) -> None:
        if self.owner is not None:
            self.owner.on_writable(self, True)

    def connection_lost(self, error: Exception | None) -> None:
        hint = ""
        if isinstance(error, OSError):
            hint = f": {tls.problem(error)}"
        elif not self.machine.is_authenticated:
            shown = "does it want another certificate, " if self.uri.tls else ""
            hint = f": is it a broker, {shown}are user and password right?"
        self.machine.on_lost(f"the broker closed the connection{hint}")
        self._stop_ticking()

    # -- Calls by the machine ------------------------------------------------------------------------------------

    def on_open(self) -> None:
        if not self.opened.done():
            self.opened.set_result(None)
        if self.machine.heartbeat_s:
            self._tick()

    def on_deliveries(self, deliveries: list[Delivery]) -> None:
        if self.owner is not None:
            self.owner.on_deliveries(self, deliveries)

    def on_bundle(self, delivery: BundleDelivery) -> None:
        if self.owner is not None:
            self.owner.on_bundle(self, delivery)

    def on_confirm(self, number: int, multiple: bool, refused: bool) -> None:
        if self.owner is not None:
            self.owner.on_confirm(self, number, multiple, refused)

    def on_returned(self, text: str) -> None:
        self._fail(f"a message was returned: {text}")

    def on_cancelled(self) -> None:
        self._fail("the consumer was cancelled: its queue is gone")

    def on_blocked(self, reason: str | None) -> None:
        self.blocked_reason = reason
        if self.owner is not None:
            self.owner.on_blocked(self, reason)

    def on_closed(self, error: Closed) -> None:
        self.error = error
        if not self.opened.done():
            self.opened.set_exception(error)
        self._fail(str(error))
        self._stop_ticking()
        if self.transport is not None:
            self.flush()
            self.transport.close()

    def _fail(self, text: str) -> None:
        if self.owner is not None:
            self.owner.on_failed(self, text)

    # -- Calls by the worker -------------------------------------------------------------------------------------

    async def call(self, name: Name, arguments: bytes) -> bytes:
        """Sends a method, and returns the arguments of its answer. Raises Closed."""
        answer: asyncio.Future[bytes] = self.loop.create_future()

        def then(result: bytes | Closed) -> None:
            if answer.done():
                return
            if isinstance(result, Closed):
                answer.set_exception(result)
            else:
                answer.set_result(result)

        self.machine.call(name, arguments, then)
        self.flush()
        try:
            async with asyncio.timeout(CALL_S):
                return await answer
        except TimeoutError:
            raise Closed(f"the {self.end} did not answer within {CALL_S:g} s") from None

    async def reopen(self) -> None:
        """Opens the channel again that a refused call has closed. Raises Closed."""
        from leveret.client.amqp import CHANNEL_OPEN

        await self.call(CHANNEL_OPEN, b"\0")

    def flush(self) -> None:
        if self.machine.output and self.transport is not None and not self.transport.is_closing():
            self.transport.writelines(self.machine.take_output())

    def pause_reading(self) -> None:
        self.is_listening = False
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        self.is_listening = True
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def close(self) -> None:
        """Says goodbye, if the broker still listens, and closes the connection once all is written."""
        self.owner = None
        self._stop_ticking()
        self.machine.close()
        if self.opened.done() and not self.opened.cancelled():
            self.opened.exception()  # It was looked at, or nobody is interested.
        else:
            self.opened.cancel()
        if self.transport is not None:
            self.flush()
            self.transport.close()

    def abort(self) -> None:
        """Closes the connection without waiting for what is not written."""
        transport = self.transport
        self.close()
        if transport is not None:
            transport.abort()

    # -- Time ----------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = self.loop.time()
        self.machine.on_tick(int((now - self.ticked_at) * 1000), self.is_listening)
        self.ticked_at = now
        self.flush()
        if self.machine.is_open:
            self.ticker = self.loop.call_later(TICK_S, self._tick)

    def _stop_ticking(self) -> None:
        if self.ticker is not None:
            self.ticker.cancel()
            self.ticker = None


async def connect(
    node: Node, uri: AmqpUri, end: str, name: str, user: str, properties: Table, made: Callable[[Wire], None]
) -> Wire:
    """Connects to a broker and logs in. `made` is called at once, with what is to be closed if this is given up.
    Raises Closed."""
    loop = node.loop
    wire = Wire(loop, uri, end)
    # A certificate without a user is there to log in with. With a user, it only lets the connection be made.
    shows_who = uri.tls and bool(uri.certfile) and uri.user is None
    mechanisms = uri.mechanisms or (("external", "plain") if shows_who else ("plain",))
    address = Address(uri.host, uri.port, uri.user or "guest", uri.password or "guest", uri.vhost, uri.tls)
    client_properties = {"product": PRODUCT, "connection_name": name, **properties}
    wire.machine = ClientMachine(
        wire, address, client_properties, mechanisms, uri.heartbeat_s, node.settings.max_message_size, uri.channel_max
    )
    made(wire)
    try:
        async with asyncio.timeout(uri.connect_ms / 1000):
            if uri.is_direct:
                _connect_directly(node, wire, name, user, properties)
            else:
                context = await loop.run_in_executor(None, _tls_context, uri) if uri.tls else None
                hostname = "" if uri.server_name is None else uri.server_name or uri.host
                if context is None:
                    await loop.create_connection(lambda: wire, uri.host, uri.port)
                else:
                    await loop.create_connection(
                        lambda: wire, uri.host, uri.port, ssl=context, server_hostname=hostname
                    )
            await wire.opened
    except TimeoutError:
        raise Closed(f"the broker did not answer within {uri.connect_ms / 1000:g} s") from None
    except ssl.SSLCertVerificationError as error:
        raise Closed(f"the broker's certificate is not trusted: {error.verify_message}") from None
    except OSError as error:
        raise Closed(tls.problem(error)) from None
    return wire


def _connect_directly(node: Node, wire: Wire, name: str, user: str, properties: Table) -> None:
    """Raises Closed."""
    uri = wire.uri
    if uri.user is not None:
        refused = node.broker.refuse_login(uri.user, uri.password or "")
        if refused is not None:
            raise Closed(f"user '{uri.user}' cannot log in: user and password of a URI without a host are checked")
        user = uri.user
    wire.transport = direct.connect(node, wire, user, uri.vhost, name, properties)
    wire.machine.begin_open(node.limits.frame_max, direct.SERVER_PROPERTIES)


def _tls_context(uri: AmqpUri) -> ssl.SSLContext:
    """Raises Closed for a file that cannot be used."""
    used = f"cacertfile {uri.cacertfile}"
    try:
        context = tls.default_context(uri.cacertfile or None)
        if not uri.verifies or uri.server_name is None:
            context.check_hostname = False
        if not uri.verifies:
            context.verify_mode = ssl.CERT_NONE
        if uri.certfile:
            used = f"certfile {uri.certfile}" + (f" with keyfile {uri.keyfile}" if uri.keyfile else "")
            context.load_cert_chain(uri.certfile, uri.keyfile or None, lambda: uri.key_password)
    except OSError as error:
        raise Closed(f"{used}: {tls.problem(error)}") from None
    return context
