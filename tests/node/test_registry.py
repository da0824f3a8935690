from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from leveret.node import registry
from leveret.node.registry import Entry, NotFound
from leveret.node.settings import Listener, Settings, TlsOptions
from tests.servers import until


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEVERET_RUNTIME_DIR", str(tmp_path / "nodes"))
    return tmp_path / "nodes"


@pytest.fixture
def other() -> Iterator[int]:
    """The id of another process of ours that runs."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    process.communicate(b"\n")


def entry(name: str = "leveret@localhost", pid: int | None = None, port: int = 25672) -> Entry:
    return Entry(name, os.getpid() if pid is None else pid, "127.0.0.1", port, "/data/one", (5672,))


def ended() -> int:
    """The id of a process that is over."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEVERET_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("HOME", "/home/ann")
    assert registry.folder() == "/home/ann/.leveret/nodes"
    assert registry.folder({"LEVERET_RUNTIME_DIR": "/elsewhere"}) == "/elsewhere"


def test_what_is_announced_is_found_until_it_is_withdrawn(folder: Path) -> None:
    tls = ("cert.pem", "key.pem", "ca.pem")
    whole = entry()._replace(amqps_ports=(5671,), cookie_file="/etc/cookie", tls=tls)
    registry.announce(whole)
    (found,) = registry.entries()
    assert found._replace(born="") == whole
    assert found.born
    assert registry.find("leveret@localhost") == registry.find("leveret") == registry.find() == found
    registry.withdraw("leveret@localhost")
    assert registry.entries() == []
    assert list(folder.iterdir()) == []
    registry.withdraw("leveret@localhost")  # Twice is no error.


def test_nobody_else_may_read_it(folder: Path) -> None:
    registry.announce(entry())
    (file,) = folder.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_entry_of_a_dead_process_does_not_count_and_is_cleared_away(folder: Path) -> None:
    registry.announce(entry("dead@localhost", ended()))
    assert registry.entries() == []
    assert len(list(folder.iterdir())) == 1
    registry.announce(entry("live@localhost"))
    assert [one.name for one in registry.entries()] == ["live@localhost"]
    assert len(list(folder.iterdir())) == 1


def test_a_process_whose_parent_has_not_looked_is_dead_all_the_same(folder: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        registry.announce(entry(pid=process.pid))
        assert len(registry.entries()) == 1
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        process.stdout.read()  # Until it ends.
        until(lambda: registry.entries() == [], "the process is over")


def test_a_process_id_that_was_used_again_is_another_process(folder: Path) -> None:
    registry.announce(entry())
    (file,) = folder.iterdir()
    values = json.loads(file.read_text())
    file.write_text(json.dumps(values | {"born": "1"}))
    assert registry.entries() == []


def test_two_of_one_name_do_not_overwrite_each_other(folder: Path, other: int) -> None:
    registry.announce(entry("a@localhost", port=1))
    registry.announce(entry("a@localhost", other, port=2))
    with pytest.raises(NotFound, match=r"several nodes are called a@localhost: .*port 1.*port 2.*--port") as raised:
        registry.find("a@localhost")
    assert raised.value.known == ("a@localhost", "a@localhost")
    registry.withdraw("a@localhost")  # Only one's own.
    assert registry.find("a@localhost").port == 2


def test_without_a_name_it_is_the_default_or_the_only_one(folder: Path, other: int) -> None:
    with pytest.raises(NotFound, match="no node of this user runs on this machine") as raised:
        registry.find()
    assert raised.value.known == ()
    registry.announce(entry("b@localhost", port=1))
    assert registry.find().name == "b@localhost"
    registry.announce(entry("c@localhost", other, port=2))
    with pytest.raises(NotFound, match=r"several nodes run on this machine.*choose one with -n NAME"):
        registry.find()
    registry.announce(entry(port=3))
    assert registry.find().port == 3


def test_an_unknown_name_tells_which_there_are(folder: Path) -> None:
    registry.announce(entry("b@localhost", port=77))
    with pytest.raises(NotFound, match=r"no node x@localhost .* there is b@localhost \(cluster port 77\)"):
        registry.find("x@localhost")


def test_by_address(folder: Path) -> None:
    registry.announce(entry("b@localhost", port=77)._replace(host="0.0.0.0"))
    found = registry.at_address("localhost", 77)
    assert found is not None and found.name == "b@localhost"
    assert registry.at_address("127.0.0.1", 78) is None
    assert registry.at_address("10.0.0.1", 77) is None


@pytest.mark.parametrize("text", ["", "no json", "[]", '{"name": 1}', '{"name": "a", "pid": "x"}', "null"])
def test_a_file_that_is_no_entry_is_left_out_and_left_alone(folder: Path, text: str) -> None:
    folder.mkdir()
    (folder / "odd.1.json").write_text(text)
    registry.announce(entry())
    assert len(registry.entries()) == 1
    assert (folder / "odd.1.json").exists()


def test_fields_of_a_later_version_do_no_harm(folder: Path) -> None:
    registry.announce(entry())
    (file,) = folder.iterdir()
    file.write_text(json.dumps(json.loads(file.read_text()) | {"management_port": 15672}))
    assert len(registry.entries()) == 1


def test_a_name_that_is_no_file_name(folder: Path) -> None:
    registry.announce(entry("../../etc/x@localhost"))
    assert [file.parent for file in folder.iterdir()] == [folder]
    assert registry.find("../../etc/x@localhost").port == 25672


def test_the_entry_of_this_process(tmp_path: Path) -> None:
    tls = TlsOptions(certfile="c", keyfile="k", cacertfile="a")
    settings = Settings(
        node_name="b@localhost",
        data_dir=str(tmp_path),
        cluster_listener=Listener("", 0),
        cluster_host="node1",
        cookie_file="/etc/cookie",
        cluster_tls=tls,
    )
    made = registry.entry_of(settings, {"cluster": 1, "amqp": 2, "amqps": 3})
    assert made == Entry(
        "b@localhost", os.getpid(), "node1", 1, str(tmp_path), (2,), (3,), "/etc/cookie", ("c", "k", "a")
    )
    plain = registry.entry_of(Settings(data_dir=str(tmp_path)), {"cluster": 1})
    assert (plain.host, plain.amqp_ports, plain.cookie_file, plain.tls) == ("127.0.0.1", (), None, None)
