from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pytest

from leveret import __version__
from leveret.cli.main import main
from leveret.node.config.settings import Listener, Settings

ROOT = Path(__file__).parents[3]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings with which `leveret server` started a node, which here ends at once."""
    settings: list[Settings] = []

    def run(given: Settings) -> int:
        settings.append(given)
        return 0

    module = types.ModuleType("leveret.node.server")
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "leveret.node.server", module)
    return settings


def exit_code(*arguments: str) -> object:
    """What the process would end with; argparse leaves by SystemExit."""
    try:
        return main(arguments)
    except SystemExit as left:
        return left.code


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--version") == 0
    assert capsys.readouterr().out == f"leveret {__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["server", "--help"]])
def test_help_teaches_by_example(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(*arguments) == 0
    shown = capsys.readouterr().out
    assert "examples:" in shown
    assert "  leveret server" in shown


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["serve"],
        ["server", "--nonsense"],
        ["server", "extra"],
        ["server", "--por", "1"],
        ["config"],
        ["log", "check"],
    ],
)
def test_wrong_use(arguments: list[str], started: list[Settings], capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(*arguments) == 64
    assert started == []
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "usage: leveret" in shown.err


def test_server_with_defaults(started: list[Settings], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("server") == 0
    expected = Settings(
        data_dir=f"{tmp_path}/.leveret/leveret@localhost",
        management_listeners=(Listener("127.0.0.1", 15672),),
        prometheus_listeners=(Listener("127.0.0.1", 15692),),
    )
    assert started == [expected]
    assert capsys.readouterr().err == ""


def test_server_options(started: list[Settings], tmp_path: Path) -> None:
    conf = tmp_path / "a.conf"
    conf.write_text("heartbeat = 7\nport = 1")
    arguments = ["--name", "rabbit@one", "--data", str(tmp_path / "d"), "--host", "::1", "--port", "0"]
    assert exit_code("server", *arguments, "--config", str(conf)) == 0
    (settings,) = started
    assert (settings.node_name, settings.data_dir) == ("rabbit@one", str(tmp_path / "d"))
    assert settings.tcp_listeners == (Listener("::1", 0),)
    assert settings.heartbeat_s == 7


def test_the_exit_code_of_the_node_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("leveret.node.server")
    module.run = lambda settings: 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "leveret.node.server", module)
    assert exit_code("server") == 3


def test_a_fault_of_the_program_is_shown_and_has_its_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(settings: Settings) -> int:
        raise RuntimeError("broken inside")

    module = types.ModuleType("leveret.node.server")
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "leveret.node.server", module)
    assert exit_code("server") == 70
    assert "RuntimeError: broken inside" in capsys.readouterr().err


def test_a_configuration_that_does_not_hold(
    started: list[Settings], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = tmp_path / "a.conf"
    conf.write_text("hartbeat = 7\nfsync = maybe")
    assert exit_code("server", "--config", str(conf), "--port", "x") == 78
    assert started == []
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("leveret: ") for line in lines)


def test_server_options_of_the_cluster(
    started: list[Settings], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cookie = tmp_path / "cookie"
    cookie.write_text("oatmeal")
    arguments = ["--cluster-port", "7", "--cluster-host", "here.example", "--cookie-file", str(cookie)]
    arguments += ["--join", "one:1", "--join", "two:2", "--priority", "9"]
    assert exit_code("server", *arguments) == 0
    (settings,) = started
    assert settings.cluster_listener == Listener("127.0.0.1", 7)
    assert (settings.cluster_host, settings.cookie_file) == ("here.example", str(cookie))
    assert (settings.join, settings.node_priority) == ((("one", 1), ("two", 2)), 9)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("word", "listeners"), [("8080", (Listener("127.0.0.1", 8080),)), ("none", ())])
def test_the_management_port(
    started: list[Settings], capsys: pytest.CaptureFixture[str], word: str, listeners: tuple[Listener, ...]
) -> None:
    assert exit_code("server", "--management-port", word) == 0
    assert [settings.management_listeners for settings in started] == [listeners]
    assert capsys.readouterr().err == ""


def test_help_loads_nothing_heavy() -> None:
    """The start has half a second for all; what only a node needs is not loaded for a look at the help."""
    script = (
        "import argparse, sys\n"
        "argparse.ArgumentParser().format_help()\n"
        "own = set(sys.modules)\n"  # From Python 3.14 on argparse itself loads dataclasses.
        "from leveret.cli.main import build_parser\n"
        "build_parser()\n"
        "print(*sorted({'asyncio', 'uvloop', 'ssl', 'logging', 'dataclasses', 'difflib', 'importlib.metadata'}"
        " & set(sys.modules) - own))"
    )
    shown = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n" + script],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.strip() == ""
