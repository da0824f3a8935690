from __future__ import annotations

from pathlib import Path

import pytest

from leveret.cli.log import check_log, repair_log
from leveret.metadata.model.commands import AddVhost, DeclareQueue, DeleteQueue
from leveret.node.system.data_folder import folder_lock
from leveret.storage.format.queue_block import PERSISTENT, Block, Run
from leveret.storage.log import Log, LogOptions
from leveret.storage.segments.disk import FileDisk
from tests.support.servers import prepare

MARK = b"this is the message that will be damaged"


def declare(name: str) -> DeclareQueue:
    return DeclareQueue("/", name, True, False, False, {}, None, "leveret@localhost")


def store(data: Path, *messages: tuple[int, bytes]) -> None:
    """One group for each (queue, content)."""
    disk = FileDisk(str(data))
    log = Log(disk, "log", LogOptions())
    log.recover([])
    for number, (queue, content) in enumerate(messages, 1):
        run = Run(number, [content], [b"\x00\x01q"], bytearray((PERSISTENT,)))
        log.append(Block(queue, 1, number, 0, run, [], [], 0))
        job = log.take()
        assert job is not None
        job.perform(disk)
        log.on_done(job)


def damage(data: Path) -> Path:
    (segment,) = (data / "log" / "segments").glob("*.log")
    stored = bytearray(segment.read_bytes())
    stored[stored.index(MARK)] ^= 1
    segment.write_bytes(stored)
    return segment


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A node with a queue of three messages, the first of which can be damaged, and a queue that was deleted."""
    prepare(tmp_path, [AddVhost("/"), declare("kept"), declare("gone"), DeleteQueue("/", "gone", None)])
    kept = 1
    store(tmp_path, (kept, MARK), (kept, b"second"), (kept, b"third"))
    return tmp_path


def waiting(data: Path) -> int:
    log = Log(FileDisk(str(data)), "log", LogOptions())
    log.recover([1])
    return log.queue(1).count


def test_a_sound_log(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_log(str(data)) == 0
    assert "3 messages waiting" in capsys.readouterr().out


def test_damage_is_listed_and_repair_drops_just_that(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment = damage(data)
    assert check_log(str(data)) == 65
    shown = capsys.readouterr()
    assert segment.name in shown.out and "messages 1..1" in shown.out
    assert f"leveret log repair {data}" in shown.err
    assert repair_log(str(data)) == 0
    assert capsys.readouterr().out.endswith("1 dropped\n")
    assert waiting(data) == 2
    assert check_log(str(data)) == 0


def test_nothing_to_repair(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert repair_log(str(data)) == 0
    assert capsys.readouterr().out == "nothing to repair\n"
    assert waiting(data) == 3


@pytest.mark.parametrize("command", [check_log, repair_log])
def test_a_folder_without_a_node(command: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert callable(command)
    assert command(str(tmp_path)) == 64
    assert "is not the data folder of a node" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [check_log, repair_log])
def test_a_node_that_is_running(command: object, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert callable(command)
    with folder_lock(str(data)):
        assert command(str(data)) == 69
    assert "stop it first" in capsys.readouterr().err
