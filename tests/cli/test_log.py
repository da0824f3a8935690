from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from pathlib import Path

import pytest

from leveret.cli.log import check_log, repair_log
from leveret.cluster.commands import AddVhost, Command, DeclareQueue, DeleteQueue
from leveret.cluster.store import Metadata
from leveret.log.disk import Disk, FileDisk
from leveret.node.journal import Journal


class Checker:
    """Stands in for the log's own checking: finds what a test says, and remembers what it was asked."""

    def __init__(self) -> None:
        self.damages: list[str] = []
        self.known: list[int] | None = None

    def check(self, disk: Disk, folder: str) -> list[str]:
        assert (disk.names(folder), folder) == (["a segment"], "segments")
        return self.damages

    def repair(self, disk: Disk, folder: str, known: Sequence[int]) -> list[str]:
        self.known = list(known)
        return self.check(disk, folder)


@pytest.fixture
def checker(monkeypatch: pytest.MonkeyPatch) -> Checker:
    checker = Checker()
    module = types.ModuleType("leveret.log.check")
    module.check, module.repair = checker.check, checker.repair  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "leveret.log.check", module)
    return checker


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "segments").mkdir()
    (tmp_path / "segments" / "a segment").touch()
    return tmp_path


def journal(data: Path, *commands: Command) -> Metadata:
    disk, metadata = FileDisk(str(data)), Metadata()
    written = Journal(disk, "metadata")
    written.recover()
    for command in commands:
        assert metadata.apply(command).refused is None
        written.append(command)
    job = written.take()
    assert job is not None
    job.perform(disk)
    return metadata


def queue(name: str) -> DeclareQueue:
    return DeclareQueue("/", name, True, False, False, {}, None, "leveret@localhost")


def test_a_sound_log(checker: Checker, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_log(str(data)) == 0
    assert capsys.readouterr().out == "no damage\n"


def test_damage_is_listed(checker: Checker, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checker.damages = ["one", "two"]
    assert check_log(str(data)) == 65
    shown = capsys.readouterr()
    assert shown.out == "one\ntwo\n"
    assert f"leveret log repair {data}" in shown.err


@pytest.mark.parametrize("command", [check_log, repair_log])
def test_a_folder_without_a_node(command: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert callable(command)
    assert command(str(tmp_path)) == 64
    assert "is not the data folder of a node" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_repair_knows_the_queues_there_are(checker: Checker, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metadata = journal(data, AddVhost("/", "", ()), queue("kept"), queue("deleted"), DeleteQueue("/", "deleted", None))
    checker.damages = ["one"]
    assert repair_log(str(data)) == 0
    assert checker.known == [metadata.queues["/", "kept"].id]
    assert capsys.readouterr().out == "dropped: one\n1 dropped\n"


def test_repair_without_a_list_of_queues_would_drop_everything(
    checker: Checker, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal(data, AddVhost("/", "", ()), queue("kept"))
    (stored,) = (data / "metadata").iterdir()
    stored.rename(stored.with_name("commands-00000000000000000007"))
    assert repair_log(str(data)) == 65
    assert checker.known is None
    assert "nothing was repaired" in capsys.readouterr().err
