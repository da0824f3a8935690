"""Commands that write all definitions into a file, and read them from one, in RabbitMQ's JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from leveret.base.control_protocol import DOCUMENT_BYTES_MAX, PART_CHARACTERS, VALIDATION
from leveret.base.exit_codes import DATA_ERROR, UNAVAILABLE, USAGE
from leveret.cli.ctl.base.command import VHOST, Command, Failed, Given, Message, Output

if TYPE_CHECKING:
    from leveret.cli.ctl.base.session import Session

GROUP: Final = "Configuration and Environment"
ITEMS_AT_ONCE: Final = 1_000
OF_THE_VHOST: Final = ("tags", "limits")  # Lists that are no sections, in the file of a single vhost.


def _vhost(given: Given) -> str | None:
    return str(given.switches["vhost"]) if "vhost" in given.switches else None


def _check_format(given: Given) -> None:
    form = given.text("format", "json").lower()
    if form != "json":
        raise Failed(USAGE, f"format {form} is not supported; use: json", VALIDATION)


# -- Export --------------------------------------------------------------------------------------------------------


def export_definitions(session: Session, given: Given) -> Output:
    _check_format(given)
    path, vhost = given.words[0], _vhost(given)
    if path != "-":
        of = "" if vhost is None else f' of vhost "{vhost}"'
        session.banner(f'Exporting definitions{of} in JSON to a file at "{path}" ...')
    made = session.ask("export_definitions", {"vhost": vhost})
    parts = (session.ask("definitions_part", {"id": made["id"], "number": number}) for number in range(made["parts"]))
    if path == "-":
        for part in parts:
            sys.stdout.write(part)
        return None
    try:
        _write(path, parts)
    except OSError as error:
        raise Failed(DATA_ERROR, f"cannot write {path}: {error.strerror or error}") from None
    return None


def _write(path: str, parts: Iterator[str]) -> None:
    """All of it or nothing: half an export under that name would be taken for one. Nobody else can read the file, for
    passwords can be guessed from their hashes."""
    import tempfile  # Rarely needed, and `help` should not load it.

    folder = os.path.dirname(os.path.abspath(path))
    if os.path.exists(path) and not os.path.isfile(path):  # /dev/stdout, a pipe
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(parts)
        return
    descriptor, partial = tempfile.mkstemp(dir=folder, prefix=".definitions-")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise


# -- Import --------------------------------------------------------------------------------------------------------


def import_definitions(session: Session, given: Given) -> Output:
    import secrets  # As above.

    _check_format(given)
    path = given.words[0] if given.words else "-"
    data = _read(path)
    session.banner(
        "Importing definitions in JSON from standard input ..."
        if path == "-"
        else f'Importing definitions in JSON from a file at "{path}" ...',
        now=True,
    )
    document = _parsed(data)
    id = secrets.token_hex(16)
    parts = 0
    for parts, (section, text) in enumerate(_parts(document), 1):  # noqa: B007 (the last one is used)
        session.ask("stage_definitions", {"id": id, "section": section, "text": text})
    remarks = {name: value for name, value in document.items() if not _is_section(name, value)}
    asked = {"id": id, "parts": parts, "vhost": _vhost(given), "remarks": remarks}
    done = session.ask_with_progress("import_definitions", asked)
    for note in done["notes"]:
        session.warn(f"Note: {note}")
    if done["failures"]:
        raise Failed(UNAVAILABLE, "\n".join([*done["failures"], "Everything else was imported."]))
    there = _counted(done["same"])
    return Message(
        f"Imported: {_counted(done['done']) or 'nothing was missing'}" + (f"; already there: {there}" if there else "")
    )


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {section.replace('_', ' ')}" for section, count in counts.items() if count)


def _read(path: str) -> bytes:
    if path == "-":
        data = sys.stdin.buffer.read(DOCUMENT_BYTES_MAX + 1)
    else:
        try:
            with open(path, "rb") as file:
                data = file.read(DOCUMENT_BYTES_MAX + 1)
        except FileNotFoundError:
            raise Failed(DATA_ERROR, f"Bad argument: File {path} does not exist", VALIDATION) from None
        except OSError as error:
            text = f"Bad argument: File {path} cannot be read: {error.strerror or error}"
            raise Failed(DATA_ERROR, text, VALIDATION) from None
    if len(data) > DOCUMENT_BYTES_MAX:
        raise Failed(DATA_ERROR, f"definitions may have at most {DOCUMENT_BYTES_MAX} bytes")
    return data


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Failed(DATA_ERROR, f"Failed to deserialise input (format: JSON) (error: {error})") from None
    if not isinstance(document, dict):
        raise Failed(DATA_ERROR, "definitions must be a JSON object")
    return document


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _is_section(name: str, value: Any) -> bool:
    return isinstance(value, list) and name not in OF_THE_VHOST


def _parts(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Each section in pieces that fit into a frame."""
    for section, items in document.items():
        if not _is_section(section, items):
            continue
        for start in range(0, len(items), ITEMS_AT_ONCE):
            batch = items[start : start + ITEMS_AT_ONCE]
            text = json.dumps(batch)
            if len(text) <= PART_CHARACTERS:
                yield section, text
            else:
                yield from ((section, json.dumps([item])) for item in batch)


COMMANDS: Final = (
    Command(
        "export_definitions", GROUP, '<file_path | "-"> [--vhost <vhost>] [--format <json>]',
        "Exports definitions in JSON", "leveretctl export_definitions /backup/definitions.json",
        export_definitions, 1, 1, {**VHOST, "format": "format"},
        more="Exports users with their password hashes, vhosts, permissions, parameters, policies, exchanges, queues "
        "and bindings, without messages, in RabbitMQ's format: import_definitions and rabbitmqctl can read it. With "
        "--vhost, exports only that virtual host, without its name, for the import into any other. Exclusive queues "
        "are left out.",
    ),
    Command(
        "import_definitions", GROUP, '<file_path | "-"> [--vhost <vhost>] [--format <json>]',
        "Imports definitions in JSON", "leveretctl import_definitions /backup/definitions.json",
        import_definitions, 0, 1, {**VHOST, "format": "format"},
        more="If the file has errors, all of them are reported and nothing is imported. Users, permissions, policies "
        "and parameters are replaced; exchanges, queues and bindings that exist stay as they are. With --vhost, "
        "imports a file that was exported from one virtual host.",
    ),
)  # fmt: skip
