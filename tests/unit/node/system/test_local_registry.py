from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from leveret.node.config.settings import Listener, Settings, TlsOptions
from leveret.node.system import local_registry
from leveret.node.system.local_registry import Entry, NotFound
from tests.support.servers import until


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
    assert local_registry.folder() == "/home/ann/.leveret/nodes"
    assert local_registry.folder({"LEVERET_RUNTIME_DIR": "/elsewhere"}) == "/elsewhere"


def test_what_is_announced_is_found_until_it_is_withdrawn(folder: Path) -> None:
    tls = ("cert.pem", "key.pem", "ca.pem")
    whole = entry()._replace(amqps_ports=(5671,), cookie_file="/etc/cookie", tls=tls)
    local_registry.announce(whole)
    (found,) = local_registry.entries()
    assert found._replace(born="") == whole
    assert found.born
    assert local_registry.find("leveret@localhost") == local_registry.find("leveret") == local_registry.find() == found
    local_registry.withdraw("leveret@localhost")
    assert local_registry.entries() == []
    assert list(folder.iterdir()) == []
    local_registry.withdraw("leveret@localhost")  # Twice is no error.


def test_nobody_else_may_read_it(folder: Path) -> None:
    local_registry.announce(entry())
    (file,) = folder.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_entry_of_a_dead_process_does_not_count_and_is_cleared_away(folder: Path) -> None:
    local_registry.announce(entry("dead@localhost", ended()))
    assert local_registry.entries() == []
    assert len(list(folder.iterdir())) == 1
    local_registry.announce(entry("live@localhost"))
    assert [one.name for one in local_registry.entries()] == ["live@localhost"]
    assert len(list(folder.iterdir())) == 1


def test_a_process_whose_parent_has_not_looked_is_dead_all_the_same(folder: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        local_registry.announce(entry(pid=process.pid))
        assert len(local_registry.entries()) == 1
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        process.stdout.read()  # Until it ends.
        until(lambda: local_registry.entries() == [], "the process is over")


def test_a_process_id_that_was_used_again_is_another_process(folder: Path) -> None:
    local_registry.announce(entry())
    (file,) = folder.iterdir()
    values = json.loads(file.read_text())
    file.write_text(json.dumps(values | {"born": "1"}))
    assert local_registry.entries() == []


def test_two_of_one_name_do_not_overwrite_each_other(folder: Path, other: int) -> None:
    local_registry.announce(entry("a@localhost", port=1))
    local_registry.announce(entry("a@localhost", other, port=2))
    with pytest.raises(NotFound, match=r"several nodes are called a@localhost: .*port 1.*port 2.*--port") as raised:
        local_registry.find("a@localhost")
    assert raised.value.known == ("a@localhost", "a@localhost")
    local_registry.withdraw("a@localhost")  # Only one's own.
    assert local_registry.find("a@localhost").port == 2


def test_without_a_name_it_is_the_default_or_the_only_one(folder: Path, other: int) -> None:
    with pytest.raises(NotFound, match="no node of this user runs on this machine") as raised:
        local_registry.find()
    assert raised.value.known == ()
    local_registry.announce(entry("b@localhost", port=1))
    assert local_registry.find().name == "b@localhost"
    local_registry.announce(entry("c@localhost", other, port=2))
    with pytest.raises(NotFound, match=r"several nodes run on this machine.*choose one with -n NAME"):
        local_registry.find()
    local_registry.announce(entry(port=3))
    assert local_registry.find().port == 3


def test_without_a_name_it_is_the_first_of_a_machines_processes(folder: Path, other: int) -> None:
    local_registry.announce(entry("rabbit@burrow"))
    local_registry.announce(entry("rabbit-2@burrow", other, 25673))
    assert local_registry.find().name == "rabbit@burrow"
    assert local_registry.find("rabbit-2").name == "rabbit-2@burrow"
    local_registry.withdraw("rabbit@burrow")
    assert local_registry.find().name == "rabbit-2@burrow"


def test_an_unknown_name_tells_which_there_are(folder: Path) -> None:
    local_registry.announce(entry("b@localhost", port=77))
    with pytest.raises(NotFound, match=r"no node x@localhost .* there is b@localhost \(cluster port 77\)"):
        local_registry.find("x@localhost")


def test_by_address(folder: Path) -> None:
    local_registry.announce(entry("b@localhost", port=77)._replace(host="0.0.0.0"))
    found = local_registry.at_address("localhost", 77)
    assert found is not None and found.name == "b@localhost"
    assert local_registry.at_address("127.0.0.1", 78) is None
    assert local_registry.at_address("10.0.0.1", 77) is None


@pytest.mark.parametrize("text", ["", "no json", "[]", '{"name": 1}', '{"name": "a", "pid": "x"}', "null"])
def test_a_file_that_is_no_entry_is_left_out_and_left_alone(folder: Path, text: str) -> None:
    folder.mkdir()
    (folder / "odd.1.json").write_text(text)
    local_registry.announce(entry())
    assert len(local_registry.entries()) == 1
    assert (folder / "odd.1.json").exists()


def test_fields_of_a_later_version_do_no_harm(folder: Path) -> None:
    local_registry.announce(entry())
    (file,) = folder.iterdir()
    file.write_text(json.dumps(json.loads(file.read_text()) | {"management_port": 15672}))
    assert len(local_registry.entries()) == 1


def test_a_name_that_is_no_file_name(folder: Path) -> None:
    local_registry.announce(entry("../../etc/x@localhost"))
    assert [file.parent for file in folder.iterdir()] == [folder]
    assert local_registry.find("../../etc/x@localhost").port == 25672


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
    made = local_registry.entry_of(settings, {"cluster": 1, "amqp": 2, "amqps": 3})
    assert made == Entry(
        "b@localhost", os.getpid(), "node1", 1, str(tmp_path), (2,), (3,), "/etc/cookie", ("c", "k", "a")
    )
    plain = local_registry.entry_of(Settings(data_dir=str(tmp_path)), {"cluster": 1})
    assert (plain.host, plain.amqp_ports, plain.cookie_file, plain.tls) == ("127.0.0.1", (), None, None)
