"""What the scripts for shells offer. bash is asked; the others are read."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from leveret.cli.completion import PROGRAMS, SHELLS, script
from leveret.cli.ctl.main import ALL
from leveret.cli.main import main
from leveret.cli.pipeline import JOBS
from tests.support.control_world import FakeServer
from tests.unit.cli.ctl import ctl_node
from tests.unit.cli.ctl.ctl_node import Ctl

ctl, server, wire = ctl_node.ctl, ctl_node.server, ctl_node.wire


def offered(program: str, *words: str) -> list[str]:
    """What bash shows when the key is pressed behind the last of these words."""
    asked = (
        f'{script(program, "bash")}\ncompopt() {{ :; }}\n'
        'leveretctl() { case "$*" in *nodes) echo one@host two@host ;; *queues) echo orders order.s ;; esac; }\n'
        f'COMP_WORDS=({program} "$@")\nCOMP_CWORD=$#\n_{program}\n'
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", asked, "bash", *words], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@pytest.mark.parametrize(
    ("program", "words", "expected"),
    [
        ("leveretctl", ["list_q"], {"list_queues"}),
        ("leveretctl", ["-n", "one@host", "list_queues", "messages_re"], {"messages_ready", "messages_ready_ram",
                                                                        "messages_ready_disk"}),
        ("leveretctl", ["list_queues", "--off"], {"--offline"}),
        ("leveretctl", ["list_users", "--formatter", "json"], {"json", "json_stream"}),
        ("leveretctl", ["set_log_level", "w"], {"warning"}),
        ("leveretctl", ["set_log_level", "info", "--category", "mirr"], {"mirroring"}),
        ("leveretctl", ["help", "sync"], {"sync_queue"}),
        ("leveretctl", ["completion", ""], {"bash", "zsh", "fish"}),
        ("leveretctl", ["-n", "on"], {"one@host"}),
        ("leveretctl", ["forget_cluster_node", "t"], {"two@host"}),
        ("leveretctl", ["rebalance", "--to", "t"], {"two@host"}),
        ("leveretctl", ["sync_queue", "ord"], {"orders", "order.s"}),
        ("leveretctl", ["list_queues", "orde"], {"orders", "order.s"}),
        ("leveret", ["pipeline", "a"], {"audit", "archive"}),
        ("leveret", ["cl"], {"cluster"}),
        ("leveret", ["cluster", "sta"], {"start", "status"}),
        ("leveret", ["cluster", "start", "--base"], {"--base-port"}),
        ("leveret", ["server", "--jo"], {"--join"}),
    ],
)  # fmt: skip
def test_bash(program: str, words: list[str], expected: set[str]) -> None:
    found = set(offered(program, *words))
    assert found == expected or (words == ["completion", ""] and expected <= found)


def test_names_for_shells(ctl: Ctl, server: FakeServer) -> None:
    client = server.world.client()
    for name in ("orders", "$(reboot)", "two words", "a.b:c@d-e_f"):
        client.declare(name)
    assert sorted(ctl("autocomplete", "--names", "queues").out.split()) == ["a.b:c@d-e_f", "orders"]
    assert ctl("autocomplete", "--names", "nodes").out.split() == ["one@host"]
    assert ctl("autocomplete", "--names", "users").code == 65
    assert ctl("autocomplete", "list_q").out == "list_queues\n"


def test_the_jobs() -> None:
    jobs = pytest.importorskip("pyspark_leveret.jobs", exc_type=ImportError)
    assert set(JOBS) == set(jobs.NAMES)


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_is_in(shell: str) -> None:
    text = script("leveretctl", shell)
    assert [command.name for command in ALL if command.name not in text] == []
    assert "cluster start" in script("leveret", shell)


@pytest.mark.parametrize("shell", [shell for shell in SHELLS if shutil.which(shell)])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_shell_can_read_it(shell: str, program: str) -> None:
    done = subprocess.run([shell, "-n"], input=script(program, shell), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_commands(ctl: Ctl, capsys: pytest.CaptureFixture[str]) -> None:
    assert ctl("completion", "bash").out == script("leveretctl", "bash") + "\n"
    assert ctl("completion", "fish", "--program", "leveret").out == script("leveret", "fish") + "\n"
    assert ctl("completion", "csh").code == 65
    assert ctl("autocomplete", "list_q").out == "list_queues\n"
    assert ctl("autocomplete", "zzz").out == ""
    assert main(["completion", "zsh"]) == 0
    assert capsys.readouterr().out == script("leveret", "zsh") + "\n"
