"""The references of `leveretctl` and `leveret`, from their tables and parsers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib import import_module
from typing import Final

from leveret.cli.ctl.base.help import EXAMPLES, EXIT_CODES, GENERAL, GROUPS
from leveret.cli.ctl.main import ALL
from leveret.cli.ctl.unsupported import REFUSED
from leveret.cli.main import build_parser
from leveret.cli.pipeline import DESCRIPTION, JOBS
from tests.support.references import markdown as md

CTL: Final = """\
Every command of `leveretctl`, which has the names, options, output and exit codes of RabbitMQ's `rabbitmqctl`,
`rabbitmq-diagnostics` and `rabbitmq-queues`. `leveretctl help COMMAND` prints the same. How to use it is told in
[operations](../operations.md)."""
LEVERET: Final = """\
Every command of `leveret`, the program that runs nodes and tools. `leveret COMMAND --help` prints the same with
examples."""


def leveretctl() -> str:
    parts = ["## General options", *_general(), f"## Examples\n\n```text\n{EXAMPLES}\n```"]
    for group in GROUPS:
        commands = sorted((one for one in ALL if one.group == group), key=lambda one: one.name)
        if not commands:
            continue
        parts.append(f"## {group}")
        for one in commands:
            parts.append(f"### {one.name}")
            parts.append(f"```text\nleveretctl {one.name} {one.usage}".rstrip() + "\n```")
            parts.append(_plain(one.about.rstrip(".") + "."))
            if one.more:
                parts.append(_plain(one.more.rstrip(".") + "."))
            if one.columns:
                parts.append(f"Columns: {', '.join(map(md.code, one.columns))}.")
            parts.append(f"Example: `{one.example}`")
    rows = [(md.code(name), _plain(reason)) for name, reason in sorted(REFUSED.items())]
    parts.append(f"## Commands of RabbitMQ that are not offered\n\n{md.table(('command', 'because'), rows)}")
    parts.append(f"## Exit codes\n\n```text\n{EXIT_CODES}\n```")
    return md.page("leveretctl", CTL, *parts)


def _general() -> Iterator[str]:
    intro, _, rest = GENERAL.partition("\n\n")
    options, _, outro = rest.partition("\n\n")
    yield intro
    rows: list[tuple[str, ...]] = []
    for line in options.splitlines()[2:]:
        short, long, text = (word.strip() for word in line.split("|"))
        if short or long:
            rows.append((md.code(short), md.code(long), _plain(text)))
        else:
            rows[-1] = (*rows[-1][:2], f"{rows[-1][2]} {_plain(text)}")
    yield md.table(("short", "long", ""), rows)
    yield _plain(outro.replace("\n", " "))


def _plain(text: str) -> str:
    """Returns a text in which Markdown finds no tags or emphasis."""
    return text.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def leveret() -> str:
    parts = list(_parser_parts("leveret", build_parser()))
    parts.append(f"## leveret pipeline\n\n{DESCRIPTION.strip()} Needs PySpark and Java 17: see [jobs](../pipeline.md).")
    parts += [part for job in JOBS for part in _one(f"leveret pipeline {job}", _job_parser(job), "###")]
    return md.page("leveret", LEVERET, *parts)


def _job_parser(name: str) -> argparse.ArgumentParser:
    job, common = import_module(f"pyspark_leveret.jobs.{name}"), import_module("pyspark_leveret.jobs.support.common")
    parser = argparse.ArgumentParser(description=job.DESCRIPTION)
    job.add_arguments(parser)
    common.add_access(parser, getattr(job, "SPEAKS_AMQP", False))
    common.add_session(parser)
    return parser


def _parser_parts(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yields the parts of all commands below a parser, those without commands of their own."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, below in action.choices.items():
                if word != "pipeline":
                    yield from _parser_parts(f"{name} {word}", below)
            return
    yield from _one(name, parser, "##")


def _one(name: str, parser: argparse.ArgumentParser, level: str) -> Iterator[str]:
    yield f"{level} {name}"
    # The start of a description; its examples are shown by --help.
    yield _plain(" ".join((parser.description or "").partition(" Example: ")[0].split()))
    rows = []
    for action in parser._actions:
        if action.help == argparse.SUPPRESS or action.dest in ("help", "version"):
            continue
        value = "" if action.nargs == 0 else _value(action)
        names = [f"{one} {value}".strip() for one in action.option_strings] or [value]
        text = _plain(" ".join((action.help or "").replace("%%", "%").split()))
        if "%(default)" in text:
            text = text.replace("%(default)s", str(action.default)).replace("%(default)d", str(action.default))
        needed = action.required and bool(action.option_strings)
        rows.append((", ".join(map(md.code, names)), f"{text} (required)" if needed else text))
    if rows:
        yield md.table(("option", ""), rows)


def _value(action: argparse.Action) -> str:
    if action.metavar is not None:
        return action.metavar if isinstance(action.metavar, str) else " ".join(action.metavar)
    return "|".join(map(str, action.choices)) if action.choices else action.dest.upper()
