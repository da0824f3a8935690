"""`leveret server`: listeners, signals, and a node between them."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import ssl
import sys
from typing import TYPE_CHECKING, Final

import uvloop

from leveret import __version__
from leveret.log.errors import LogDamaged
from leveret.node import logs
from leveret.node.client import Client
from leveret.node.folder import FolderInUse, folder_lock
from leveret.node.journal import JournalDamaged
from leveret.node.node import Node

if TYPE_CHECKING:
    from leveret.node.settings import Settings, TlsOptions

logger = logging.getLogger("leveret")

EX_DATAERR: Final = 65
EX_UNAVAILABLE: Final = 69
EX_SOFTWARE: Final = 70
TLS_VERSIONS: Final = {"tlsv1.2": ssl.TLSVersion.TLSv1_2, "tlsv1.3": ssl.TLSVersion.TLSv1_3}


class CannotListen(Exception):
    """An address is taken, or not ours."""


def raise_file_limit() -> None:
    """A connection is a descriptor: take as many as the system grants."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run(settings: Settings) -> int:
    """Serve until a signal; the exit code."""
    logs.set_up(settings)
    try:
        os.makedirs(settings.data_dir, mode=0o750, exist_ok=True)
        with folder_lock(settings.data_dir):
            return _run(settings)
    except FolderInUse as error:
        logger.critical("%s; give this one its own folder with --data", error)
        return EX_UNAVAILABLE
    except (LogDamaged, JournalDamaged) as error:
        logger.critical("this node does not start: %s", error)
        return EX_DATAERR
    except CannotListen as error:
        logger.critical("%s", error)
        return EX_UNAVAILABLE


def _run(settings: Settings) -> int:
    raise_file_limit()
    sys.setswitchinterval(0.0002)  # The threads that write to disk must not wait 5 ms for a busy loop.
    return uvloop.run(serve(settings))


async def serve(settings: Settings) -> int:
    loop = asyncio.get_running_loop()
    logger.info("Leveret %s, node %s, data in %s", __version__, settings.node_name, settings.data_dir)
    # What a start reads stays: no collector need look at it, neither now nor later. A million bindings would cost it
    # half a second each time, with the loop standing still.
    gc.disable()
    node = Node(settings, loop)
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 20, 50)
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, node.request_stop)
    node.start()
    servers = await open_listeners(node)
    await node.stopped
    logger.info("stopping")
    for server in servers:
        server.close()
    await node.stop()
    return EX_SOFTWARE if node.fatal else 0


async def open_listeners(node: Node) -> list[asyncio.Server]:
    settings, loop = node.settings, node.loop
    servers, ports = [], []
    context = None if settings.tls is None else tls_context(settings.tls)
    for listeners, tls in ((settings.tcp_listeners, None), (settings.ssl_listeners, context)):
        for listener in listeners:
            try:
                server = await loop.create_server(
                    lambda: Client(node),
                    listener.host or None,
                    listener.port,
                    backlog=settings.backlog,
                    ssl=tls,
                    ssl_handshake_timeout=tls_timeout_s(settings) if tls else None,
                )
            except OSError as error:
                raise CannotListen(
                    f"cannot listen at {listener}: {error.strerror or error}. Is another broker running there? "
                    "Choose another address with --host and --port"
                ) from None
            servers.append(server)
            port = server.sockets[0].getsockname()[1]
            ports.append(f"{'amqps' if tls else 'amqp'}={port}")
    print(f"ready {' '.join(ports)}", flush=True)
    logger.info("Server startup complete; listening: %s", ", ".join(ports))
    return servers


def tls_timeout_s(settings: Settings) -> float | None:
    return None if settings.ssl_handshake_timeout_ms is None else settings.ssl_handshake_timeout_ms / 1000


def tls_context(options: TlsOptions) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=options.cacertfile)
    context.load_cert_chain(options.certfile, options.keyfile, options.password)
    versions = [TLS_VERSIONS[name] for name in options.versions]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    if options.verify_peer:
        context.verify_mode = ssl.CERT_REQUIRED if options.fail_if_no_peer_cert else ssl.CERT_OPTIONAL
    return context
