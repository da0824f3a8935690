"""`leveret config check`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from leveret.base.exit_codes import CONFIG, OK
from leveret.cli.server import load_or_report
from leveret.node.config import config_as_text
from leveret.node.config.load import Loaded, load
from leveret.node.system.data_folder import problem_of

COLUMN = 56  # Where remarks begin.


def check_config(file: str, all_: bool = False) -> int:
    loaded = load_or_report([], file)
    if loaded is None:
        return CONFIG
    problems = unusable(loaded)
    for problem in problems:
        print(f"leveret: {problem}", file=sys.stderr)
    if problems:
        return CONFIG
    for line in describe(loaded, os.environ, all_):
        print(line)
    return OK


def unusable(loaded: Loaded) -> list[str]:
    """Folders that are named well, and that the server could not use."""
    settings = loaded.settings
    found = {"data_dir": problem_of(settings.data_dir)}
    if settings.log_file is not None:
        found["log.dir" if "log.dir" in loaded.sources else "log.file"] = problem_of(os.path.dirname(settings.log_file))
    where = loaded.sources
    return [
        f"{where[key]}: {key}: {problem}" if key in where else f"{key}: {problem}"
        for key, problem in found.items()
        if problem is not None
    ]


def describe(loaded: Loaded, environ: Mapping[str, str], all_: bool = False) -> list[str]:
    """The settings as lines of a configuration file: those that are not as by default, or all. A remark says where a
    value was given, and what it is by default."""
    home = {"HOME": environ["HOME"]} if "HOME" in environ else {}
    usual = config_as_text.pairs(load([], home).settings)
    found, where = config_as_text.pairs(loaded.settings), loaded.sources
    told = {key for key, text in found.items() if key in where or text not in (usual.get(key), config_as_text.SECRET)}
    groups = {_group(key) for key in told}
    lines = []
    for key, text in found.items():
        if not all_ and key not in told and _group(key) not in groups:
            continue
        remarks = _where(key, where)
        if text == config_as_text.SECRET:
            remarks.append("not shown")
        elif text == usual.get(key):
            remarks.append("the default")
        elif key in usual:
            remarks.append(f"default: {usual[key]}")
        elif not remarks:
            remarks.append("follows from other settings")
        line = config_as_text.line(key, text)
        lines.append(f"{line:<{COLUMN}}  # {'; '.join(remarks)}" if remarks else line)
    rest = len(found) - len(lines)
    if rest and not all_:
        lines.append(f"# {rest} more settings have their defaults; to see them: leveret config check --all FILE")
    return lines


def _where(key: str, sources: Mapping[str, str]) -> list[str]:
    if key in sources:
        return [sources[key]]
    head = _group(key)  # The items of a list may have other names in the file than here.
    return sorted({where for one, where in sources.items() if head != key and one.rpartition(".")[0] == head})


def _group(key: str) -> str:
    """Keys that mean something only together: an address and its port, the items of a list."""
    head, _, last = key.rpartition(".")
    return head if last in ("ip", "port") or last.isdecimal() else key
