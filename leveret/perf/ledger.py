"""Writes ledgers: which messages were confirmed to the publishers of a load, and which its consumers received.

`leveret pipeline audit` compares them with the broker's journals. For that, messages need names: with a ledger, a
publisher puts its own name, a random number, and the number of the message, as confirms count, after the time in the
body. A line of a ledger is a run of such numbers:

    published/RUN.jsonl   {"queue": "q", "publisher": "1f00c0de", "number": 1, "last": 500,
                           "confirmed_at": 1794769923634, "channel": "10.0.0.7:40000 -> 10.0.0.1:5672 (1)",
                           "cluster": "rabbit@one"}
    consumed/RUN.jsonl    … "received_at": …, "channel": …, "redelivered": false

A run covers at most `RUN_MS`. At most `RUNS_MAX` runs are open; they are written with each line of output, so the
ledger of a process that is killed lacks its last interval. A load without consumers writes no ledger of consumers. A
consumer's line means that it received the message, not
that its ack arrived.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from typing import IO, Final

NAME: Final = struct.Struct(">IQ")  # After the time in a body: the publisher, and the number of the message.
RUN_MS: Final = 50
RUNS_MAX: Final = 256
FILE_BYTES: Final = 1 << 16


class Ledger:
    """A file of a ledger. `at` names the column of times."""

    def __init__(self, folder: str, kind: str, run: str, at: str) -> None:
        """Creates the file. Raises OSError."""
        os.makedirs(os.path.join(folder, kind), exist_ok=True)
        path = os.path.join(folder, kind, f"{run}.jsonl")
        self._file: IO[str] = open(path, "w", encoding="utf-8", buffering=FILE_BYTES)  # noqa: SIM115
        self._at = at
        self.cluster = ""  # The name of the cluster, as soon as a broker has said it.
        # By queue, publisher, channel and redelivered: first, last, time of the first.
        self._runs: dict[tuple[str, int, str, bool], tuple[int, int, int]] = {}

    def note(
        self, queue: str, publisher: int, channel: str, first: int, last: int, ms: int, redelivered: bool = False
    ) -> None:
        key = (queue, publisher, channel, redelivered)
        run = self._runs.get(key)
        if run is not None and run[1] + 1 == first and ms - run[2] <= RUN_MS:
            self._runs[key] = (run[0], last, run[2])
            return
        if run is not None:
            self._write(key, run)
        elif len(self._runs) >= RUNS_MAX:
            self.flush()
        self._runs[key] = (first, last, ms)

    def _write(self, key: tuple[str, int, str, bool], run: tuple[int, int, int]) -> None:
        queue, publisher, channel, redelivered = key
        entry: dict[str, str | int | bool] = {"queue": queue, "publisher": f"{publisher:08x}", "number": run[0]}
        entry |= {"last": run[1], self._at: run[2], "channel": channel}
        if self._at == "received_at":
            entry["redelivered"] = redelivered
        if self.cluster:
            entry["cluster"] = self.cluster
        self._file.write(json.dumps(entry) + "\n")

    def flush(self) -> None:
        runs, self._runs = self._runs, {}
        for key, run in runs.items():
            self._write(key, run)
        self._file.flush()

    def close(self) -> None:
        self.flush()
        self._file.close()


def cluster_name(server_properties: bytes) -> str:
    """Returns the name that a broker gives its cluster in the arguments of connection.start; "" if it gives none."""
    name = b"cluster_name"
    _, found, rest = server_properties.partition(bytes((len(name),)) + name + b"S")
    return rest[4 : 4 + int.from_bytes(rest[:4], "big")].decode("utf-8", "replace") if found else ""


def channel_name(connection: socket.socket) -> str:
    """Returns the name of the only channel of a connection, as brokers show it."""
    (here, port), (there, their_port) = connection.getsockname()[:2], connection.getpeername()[:2]
    return f"{here}:{port} -> {there}:{their_port} (1)"
