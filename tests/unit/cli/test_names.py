"""`leveret names`: RabbitMQ's programs as files that call Leveret."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from leveret import __version__
from leveret.cli.main import main
from leveret.cli.names import PROGRAMS
from leveret.cli.rabbitmq import programs


def test_each_program_is_made_and_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "my programs"
    assert main(["names", str(folder)]) == main(["names", str(folder)]) == 0
    assert sorted(os.listdir(folder)) == sorted(PROGRAMS)
    capsys.readouterr()
    done = subprocess.run([folder / "rabbitmqctl", "version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == __version__


def test_what_is_somebody_elses_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "rabbitmqctl"
    other.write_text("#!/bin/sh\n")
    assert main(["names", str(tmp_path)]) == 69
    assert "was not made by leveret" in capsys.readouterr().err
    assert other.read_text() == "#!/bin/sh\n"
    assert main(["names", str(tmp_path), "--force"]) == 0
    assert "leveret" in other.read_text()


def test_no_program_is_without_code(capsys: pytest.CaptureFixture[str]) -> None:
    for program in PROGRAMS:
        assert programs.run(program, ["--no-such-option"]) in (1, 64)
    assert programs.run("rabbitmq-tea", []) == 64
    assert "there is no program rabbitmq-tea" in capsys.readouterr().err
