"""The broker beside a test: `python -m leveret.testing.process`, which is `leveret server` with faults.

It prints "ready" with its ports, and ends on SIGTERM or when its stdin is closed: a test run that was killed leaves no
broker behind. It is not in the registry that leveretctl reads, which would take it for the broker of this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
import sys
from typing import TYPE_CHECKING

import uvloop

from leveret.node.server import SWITCH_S, calm_collector, raise_file_limit
from leveret.node.sockets.cookie import find_cookie
from leveret.node.system import logs
from leveret.node.system.allocator import keep_freed_memory
from leveret.node.system.data_folder import folder_lock
from leveret.testing.environment import make_server
from leveret.testing.settings import load_settings

if TYPE_CHECKING:
    from leveret.node.config.settings import Settings

STDIN = 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="leveret.testing.process", allow_abbrev=False)
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[])
    parser.add_argument("--config", metavar="FILE")
    parser.add_argument("--sync", action="store_true")
    parsed = parser.parse_args()
    values = dict(one.split("=", 1) for one in parsed.set)
    settings = load_settings(values, parsed.config)
    logs.set_up(settings)
    os.makedirs(settings.data_dir, mode=0o750, exist_ok=True)
    raise_file_limit()
    keep_freed_memory()
    sys.setswitchinterval(SWITCH_S)
    with folder_lock(settings.data_dir):
        uvloop.run(serve(settings, parsed.sync))
    return 0


async def serve(settings: Settings, synced: bool) -> None:
    loop = asyncio.get_running_loop()
    server = make_server(
        settings, find_cookie(settings.data_dir, settings.cookie_file, settings.cookie), synced, shared=False
    )
    server.watch.start(loop)
    loop.add_signal_handler(signal.SIGTERM, server.request_stop)
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # Ctrl-C is for the test run, which stops this process.

    def on_stdin() -> None:
        if not os.read(STDIN, 4096):
            loop.remove_reader(STDIN)
            server.request_stop()

    loop.add_reader(STDIN, on_stdin)
    gc.disable()
    server.on_recovered = calm_collector
    try:
        await server.start()
        print("ready " + " ".join(f"{name}={port}" for name, port in server.ports.items()), flush=True)
        await server.stopped
    finally:
        await server.stop()


if __name__ == "__main__":
    sys.exit(main())
