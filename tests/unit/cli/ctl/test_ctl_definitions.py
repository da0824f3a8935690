from __future__ import annotations

import io
import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from leveret.cli.ctl.metadata import definitions
from leveret.metadata.model import commands as c
from tests.support.control_world import FakeServer
from tests.support.rabbitmq import DEFINITIONS
from tests.unit.cli.ctl import ctl_node
from tests.unit.cli.ctl.ctl_node import Ctl, Wire

ctl, server, wire = ctl_node.ctl, ctl_node.server, ctl_node.wire

EXPORT = DEFINITIONS

IMPORTED = "\nImported: "
NOTHING = "nothing was missing; already there: "


def queue(name: str, **more: Any) -> dict[str, Any]:
    return {"vhost": "/", "name": name, "durable": True, "auto_delete": False, "arguments": {}, **more}


def given(folder: Path, document: Any) -> str:
    path = folder / "given.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return str(path)


def test_there_and_back(ctl: Ctl, server: FakeServer, tmp_path: Path) -> None:
    ended = ctl("import_definitions", str(EXPORT))
    assert ended.code == 0
    assert ended.out == (
        f'Importing definitions in JSON from a file at "{EXPORT}" ...\n'
        "Imported: 5 users, 2 vhosts, 2 permissions, 1 topic permissions, 1 parameters, 2 global parameters, "
        "5 policies, 4 exchanges, 6 queues, 5 bindings; already there: 1 parameters\n"
    )
    assert ended.err.count("Note: ") == 4
    assert ctl("import_definitions", str(EXPORT)).out.partition(IMPORTED)[2].startswith(NOTHING)
    path = tmp_path / "out.json"
    ended = ctl("export_definitions", str(path), "--format", "json")
    assert (ended.code, ended.out) == (0, f'Exporting definitions in JSON to a file at "{path}" ...\n')
    assert stat.S_IMODE(path.stat().st_mode) == 0o600  # There are hashes of passwords in it.
    assert {one["name"] for one in json.loads(path.read_text())["queues"]} >= {"orders", "work.лиса"}
    assert ctl("import_definitions", str(path)).out.partition(IMPORTED)[2].startswith(NOTHING)
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".definitions")] == []


def test_standard_output_and_input(ctl: Ctl, server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.world.apply(c.DeclareQueue("/", "q"))
    ended = ctl("export_definitions", "-")
    assert [one["name"] for one in json.loads(ended.out)["queues"]] == ["q"]
    server.world.apply(c.DeleteQueue("/", "q"))

    class Standard:
        buffer = io.BytesIO(ended.out.encode())

    monkeypatch.setattr(sys, "stdin", Standard())
    ended = ctl("import_definitions", "-")
    assert ended.out == (
        "Importing definitions in JSON from standard input ...\n"
        "Imported: 1 queues; already there: 2 users, 1 vhosts, 1 permissions\n"
    )
    assert ("/", "q") in server.world.metadata.queues


def test_of_one_vhost(ctl: Ctl, server: FakeServer, tmp_path: Path) -> None:
    for command in (c.AddVhost("a"), c.AddVhost("b"), c.DeclareQueue("a", "q")):
        server.world.apply(command)
    path = str(tmp_path / "a.json")
    assert ctl("export_definitions", path, "-p", "a").out.startswith('Exporting definitions of vhost "a" in JSON')
    assert ctl("import_definitions", path).code == 65  # Into which?
    assert ctl("import_definitions", path, "-p", "b").code == 0
    assert ("b", "q") in server.world.metadata.queues
    assert ctl("export_definitions", path, "-p", "none").err == "Error:\nVirtual host 'none' does not exist\n"


def test_a_large_file_travels_in_parts(
    ctl: Ctl, wire: Wire, server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(definitions, "ITEMS_AT_ONCE", 10)
    monkeypatch.setattr(definitions, "PART_CHARACTERS", 2_000)
    path = given(tmp_path, {"queues": [queue(f"q{n}", arguments={"n": "x" * (n * 20)}) for n in range(25)]})
    assert ctl("import_definitions", path).code == 0
    staged = [one["arguments"] for one in wire.asked if one["command"] == "stage_definitions"]
    assert [len(json.loads(one["text"])) for one in staged] == [10] + [1] * 15
    assert len(server.world.metadata.queues) == 25


@pytest.mark.parametrize(
    ("document", "code", "text"),
    [
        ("{nope", 65, "Failed to deserialise input (format: JSON) (error: "),
        ('{"global_parameters": [{"name": "n", "value": NaN}]}', 65, "Failed to deserialise input"),
        ("[1]", 65, "definitions must be a JSON object"),
        ({"cats": [1]}, 65, "definitions have no section 'cats'"),
        ({"cats": 1}, 65, "'cats' is nothing that definitions have"),
        ({"queues": [queue("q", durable="yes")]}, 65, "queues[0] 'q' in vhost '/': durable must be true or false"),
    ],
)
def test_what_is_wrong_is_told(
    ctl: Ctl, server: FakeServer, tmp_path: Path, document: Any, code: int, text: str
) -> None:
    ended = ctl("import_definitions", given(tmp_path, document))
    assert ended.code == code
    assert ended.err.startswith(f"Error:\n{text}")
    assert server.all.changes == []


def test_what_was_refused_of_an_import(ctl: Ctl, server: FakeServer, tmp_path: Path) -> None:
    server.world.apply(c.SetVhostLimits("/", {"max-queues": 1}))
    ended = ctl("import_definitions", given(tmp_path, {"queues": [queue("a"), queue("b")]}))
    assert ended.code == 69
    assert ended.err.endswith("queue limit in vhost '/' (1) is reached\nEverything else was imported.\n")


def test_files_that_cannot_be_used(ctl: Ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = ctl("import_definitions", "nofile.json")
    assert ended.code == 65
    assert ended.err.startswith("Error (argument validation): Bad argument: File nofile.json does not exist\n")
    assert ctl("import_definitions", str(tmp_path)).code == 65
    assert ctl("export_definitions", str(tmp_path / "none" / "x.json")).code == 65
    assert ctl("export_definitions", "x", "--format", "erlang").code == 64
    monkeypatch.setattr(definitions, "DOCUMENT_BYTES_MAX", 5)
    assert "at most 5 bytes" in ctl("import_definitions", given(tmp_path, {"queues": []})).err
