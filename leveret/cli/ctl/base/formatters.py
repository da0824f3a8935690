"""Tables, sentences and reports as text: rabbitmqctl's formats.

`table` puts tabs between values, since scripts cut at them. A control character in a name would forge a row or steer
the terminal, so all but the tab are shown as octal escapes.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from leveret.cli.ctl.base.command import Message, Output, Report, Rows
from leveret.cli.ctl.base.erlang_terms import elixir, erlang

# Columns whose values are AMQP tables: [name, type, value] each.
TABLES: Final = frozenset({"arguments", "client_properties"})
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
MACHINE_READABLE: Final = frozenset({"json", "json_stream", "csv"})

Style = Callable[[str], str]


def lines(output: Output, formatter: str, node: str, headers: bool, bold: Style) -> Iterator[str]:
    """Yield the lines to print."""
    if isinstance(output, Rows):
        yield from _rows(output, formatter, headers, bold)
    elif formatter in ("json", "json_stream"):
        yield _json(_value(output, node))
    elif formatter == "csv" and isinstance(output, Message):
        yield from _csv([[output.text]])
    elif formatter == "erlang":
        yield erlang(output.text if isinstance(output, Message) else _value(output, node))
    elif formatter == "inspect":
        yield elixir(output.text if isinstance(output, Message) else _value(output, node))
    elif isinstance(output, Message | Report):
        yield output.text


def _value(output: Output, node: str) -> Any:
    if isinstance(output, Report):
        return output.value
    if isinstance(output, Message):
        return {"message": output.text}
    return {"node": node, "result": "ok"}


def _rows(output: Rows, formatter: str, headers: bool, bold: Style) -> Iterator[str]:
    columns, rows = output.columns, output.rows
    headers = headers and output.headers
    if formatter == "json":
        yield "["
        for place, row in enumerate(rows):
            yield ("," if place else "") + _json(dict(zip(columns, row, strict=True)))
        yield "]"
    elif formatter == "json_stream":
        for row in rows:
            yield _json(dict(zip(columns, row, strict=True)))
    elif formatter == "csv":
        for place, row in enumerate(rows):
            if not place and headers:
                yield from _csv([list(columns)])
            yield from _csv([_texts(columns, row)])
    elif formatter == "erlang":
        entries = [erlang(dict(zip(columns, row, strict=True))) for row in rows]
        yield f"[{(',' + chr(10) + ' ').join(entries)}]"
    elif formatter in ("string", "inspect"):
        if formatter == "inspect":
            yield "["
        for place, row in enumerate(rows):
            yield ("," if place and formatter == "inspect" else "") + elixir(dict(zip(columns, row, strict=True)))
        if formatter == "inspect":
            yield "]"
    elif formatter == "pretty_table":
        yield from _pretty(columns, [_texts(columns, row) for row in rows], bold)
    else:
        for place, row in enumerate(rows):
            if not place and headers:
                yield "\t".join(columns)
            yield "\t".join(_texts(columns, row))


def _json(value: Any) -> str:
    # A name that is no UTF-8 came as lone surrogates; JSON's readers would choke on either form of those.
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace").decode()


def _csv(rows: Iterable[list[str]]) -> Iterator[str]:
    buffer = io.StringIO()
    csv.writer(buffer, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    yield buffer.getvalue().removesuffix("\n")


def _pretty(columns: tuple[str, ...], rows: list[list[str]], bold: Style) -> Iterator[str]:
    if not rows:
        return
    widths = [max(len(row[place]) for row in [list(columns), *rows]) for place in range(len(columns))]

    def rule(left: str, middle: str, right: str) -> str:
        return left + middle.join("─" * (width + 2) for width in widths) + right

    def line(cells: Iterable[str], style: Style = str) -> str:
        padded = (f" {style(cell)}{' ' * (width - len(cell))} " for cell, width in zip(cells, widths, strict=True))
        return f"│{'│'.join(padded)}│"

    yield rule("┌", "┬", "┐")
    yield line(columns, bold)
    for row in rows:
        yield rule("├", "┼", "┤")
        yield line(row)
    yield rule("└", "┴", "┘")


# -- Values --------------------------------------------------------------------------------------------------------


def _texts(columns: tuple[str, ...], row: list[Any]) -> list[str]:
    return [amqp_table(value) if name in TABLES else shown(value) for name, value in zip(columns, row, strict=True)]


def shown(value: Any) -> str:
    """A value of a table as text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, dict):
        return f"[{', '.join(f'{{{shown(name)}, {shown(one)}}}' for name, one in value.items())}]"
    return visible(str(value))


def visible(text: str) -> str:
    return _CONTROLS.sub(lambda match: f"\\{ord(match[0]):03o}", text)


def amqp_table(entries: Any) -> str:
    """`[{"x-message-ttl",60000}]`: RabbitMQ's form."""
    if not isinstance(entries, list):
        return shown(entries)
    return f"[{','.join(f'{{{_quoted(name)},{_term(kind, value)}}}' for name, kind, value in entries)}]"


def _term(kind: str, value: Any) -> str:
    if kind == "table":
        return amqp_table(value)
    if kind == "array":
        return f"[{','.join(_term(*one) for one in value)}]"
    if kind == "decimal":
        return f"{{{value[0]},{value[1]}}}"
    if value is None:
        return "undefined"
    if isinstance(value, float):
        from leveret.protocol.erlang_format import printed_float

        return printed_float(value)
    return _quoted(value) if isinstance(value, str) else shown(value)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{visible(escaped)}"'
