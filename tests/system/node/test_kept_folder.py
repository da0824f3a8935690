"""A data folder that an earlier version has written still opens, and has what that version confirmed.

`kept_folder.tar.gz` was written by the version before the packages were arranged anew: a topic exchange `kept`, a queue
`plain` with six messages of which the first is acknowledged and the next two were requeued, a queue with priorities,
and a stream of everything.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pika

from tests.support.servers import Server

KEPT = Path(__file__).with_name("kept_folder.tar.gz")


def test_the_folder_of_an_earlier_version_opens(tmp_path: Path) -> None:
    server = Server(tmp_path, arguments=("--name", "kept@localhost"))
    with tarfile.open(KEPT) as archive:
        archive.extractall(server.data, filter="data")
    server.start()
    try:
        channel = server.channel()
        assert channel.queue_declare("stream", passive=True).method.message_count == 10
        got = [channel.basic_get("plain", auto_ack=True) for _ in range(6)]
        assert [body for _, _, body in got] == [b"plain 1", b"plain 2", b"plain 3", b"plain 4", b"plain 5", None]
        assert [method.redelivered for method, _, _ in got[:-1]] == [True, True, False, False, False]
        assert [properties.headers for _, properties, _ in got[:-1]] == [{"n": n} for n in range(1, 6)]
        bodies = [channel.basic_get("priorities", auto_ack=True)[2] for _ in range(4)]
        assert bodies == [b"priority 3", b"priority 2", b"priority 1", b"priority 0"]
        channel.confirm_delivery()
        channel.basic_publish("kept", "a.new", b"new", pika.BasicProperties(delivery_mode=2), mandatory=True)
        assert channel.basic_get("plain", auto_ack=True)[2] == b"new"
    finally:
        server.end()
