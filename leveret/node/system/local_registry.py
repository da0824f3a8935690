"""The list of the nodes that this user runs on this machine, and how to reach them.

A running node keeps a small file in a folder of the user's; leveretctl reads it, so that `leveretctl -n NAME ...` needs
neither port nor cookie. It does what epmd does for RabbitMQ, without a process that could be missing.

The folder is `~/.leveret/nodes`, not $XDG_RUNTIME_DIR: that one is set in a login session and missing in a service, so
that the two would not find each other. LEVERET_RUNTIME_DIR names another.

A node that was killed leaves its file behind. An entry therefore counts only while its process lives, and a process is
known by its id *and* by when it began: ids are used again. Two nodes of one name (in tests, say) have a file each and
do not overwrite each other's; a search for that name reports both.

Everything in a file is known to anybody who may read the node's data folder, and the folder is closed to others.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from leveret.node.system.json_answers import read_object

if TYPE_CHECKING:
    from leveret.node.config.settings import Settings

FOLDER_VARIABLE: Final = "LEVERET_RUNTIME_DIR"
DEFAULT_FOLDER: Final = "~/.leveret/nodes"
DEFAULT_NAME: Final = "leveret@localhost"
SUFFIX: Final = ".json"
LOOPBACK: Final = "127.0.0.1"
FILE_BYTES_MAX: Final = 65_536


class Entry(NamedTuple):
    """A running node."""

    name: str
    pid: int
    host: str  # of its cluster port, to connect to
    port: int
    data_dir: str
    amqp_ports: tuple[int, ...] = ()
    amqps_ports: tuple[int, ...] = ()
    cookie_file: str | None = None  # None: the one in the data folder
    tls: tuple[str, str, str] | None = None  # of the cluster port: certificate, key, authority
    born: str = ""  # when the process began, as the system counts; "" where that cannot be had


class NotFound(Exception):
    """There is no single node of that name; the text says which there are. `known` has their names."""

    def __init__(self, text: str, known: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.known = known


def entry_of(settings: Settings, ports: Mapping[str, int]) -> Entry:
    """Returns the entry of this process. `ports`: those that were opened, by protocol: cluster, amqp, amqps."""
    tls = settings.cluster_tls
    return Entry(
        settings.node_name,
        os.getpid(),
        # A node at every interface is at this one too; the host by which others know it may have no address here. With
        # TLS, that host is the one that the certificate names.
        settings.cluster_listener.host or (LOOPBACK if tls is None else settings.cluster_host),
        ports["cluster"],
        os.path.abspath(settings.data_dir),
        (ports["amqp"],) if "amqp" in ports else (),
        (ports["amqps"],) if "amqps" in ports else (),
        None if settings.cookie_file is None else os.path.abspath(settings.cookie_file),
        # The password of a key is not written down; where there is one, leveretctl is given the files by options.
        None if tls is None or tls.password or not tls.cacertfile else (tls.certfile, tls.keyfile, tls.cacertfile),
    )


def folder(environ: Mapping[str, str] = os.environ) -> str:
    return environ.get(FOLDER_VARIABLE) or os.path.expanduser(DEFAULT_FOLDER)


def announce(entry: Entry) -> None:
    """Writes the entry of this process. Raises OSError where nothing can be written."""
    where = folder()
    os.makedirs(where, mode=0o700, exist_ok=True)
    _remove_stale(where)
    entry = entry._replace(born=_process(entry.pid)[1])
    path = os.path.join(where, _file_name(entry.name, entry.pid))
    unfinished = f"{path}.new"
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump(entry._asdict(), file)
    os.replace(unfinished, path)  # Readers find all of it, or nothing.


def withdraw(name: str, pid: int | None = None) -> None:
    """Removes the entry of a node that has stopped, or gets another name; does nothing if there is none."""
    try:
        os.unlink(os.path.join(folder(), _file_name(name, os.getpid() if pid is None else pid)))
    except FileNotFoundError:
        pass


def entries() -> list[Entry]:
    """Returns all nodes that run, by name. An unreadable file is ignored: it may be of another version."""
    found = [entry for _, entry in _read_all(folder()) if entry is not None and is_running(entry)]
    return sorted(found, key=lambda entry: (entry.name, entry.port))


def find(name: str | None = None) -> Entry:
    """Returns the node of that name, with or without its host; without a name the default one, or the only one.

    Raises NotFound.
    """
    running = entries()
    if name is None:
        matching = [entry for entry in running if entry.name == DEFAULT_NAME] or _without_further(running)
    else:
        matching = [entry for entry in running if name in (entry.name, entry.name.partition("@")[0])]
    if len(matching) == 1:
        return matching[0]
    known = tuple(entry.name for entry in running)
    if not running:
        wanted = "" if name is None else f" {name}"
        raise NotFound(f"no node{wanted} of this user runs on this machine", known)
    if not matching:
        raise NotFound(f"no node {name} of this user runs on this machine; there is {_list(running)}", known)
    if name is None:
        raise NotFound(f"several nodes run on this machine: {_list(matching)}; choose one with -n NAME", known)
    raise NotFound(f"several nodes are called {name}: {_list(matching)}; choose one with --port PORT", known)


def _without_further(running: list[Entry]) -> list[Entry]:
    """Returns the nodes without the second and further processes of one of them: see `leveret server --processes`."""
    names = {entry.name for entry in running}
    return [entry for entry in running if re.sub(r"-[0-9]+(?=@)", "", entry.name) not in names - {entry.name}]


def at_address(host: str, port: int) -> Entry | None:
    """Returns the node of this user that listens there."""
    local = ("localhost", "127.0.0.1", "::1")
    for entry in entries():
        if entry.port == port and (entry.host == host or (host in local and entry.host in ("", "0.0.0.0", *local))):
            return entry
    return None


def is_running(entry: Entry) -> bool:
    """Returns whether the process that wrote the entry still runs."""
    try:
        os.kill(entry.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return False  # Somebody else's process: the id was used again.
    state, born = _process(entry.pid)
    if state == "Z":
        return False  # It has ended, and its parent has not looked yet.
    return not entry.born or born == entry.born


def _process(pid: int) -> tuple[str, str]:
    """Returns a process's state, and when it began; empty where that is not known."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The second field is the command's name in brackets, and may contain spaces and brackets itself.
            fields = file.read().rpartition(b")")[2].split()
        return fields[0].decode(), fields[19].decode()
    except (OSError, IndexError):
        return "", ""  # No Linux, or no such process.


def _file_name(name: str, pid: int) -> str:
    return f"{quote(name, safe='@')}.{pid}{SUFFIX}"


def _list(found: list[Entry]) -> str:
    return ", ".join(f"{entry.name} (cluster port {entry.port})" for entry in found)


def _read_all(where: str) -> list[tuple[str, Entry | None]]:
    try:
        names = os.listdir(where)
    except FileNotFoundError:
        return []
    paths = [os.path.join(where, name) for name in sorted(names) if name.endswith(SUFFIX)]
    return [(path, _read(path)) for path in paths]


def _read(path: str) -> Entry | None:
    try:
        with open(path, encoding="utf-8") as file:
            return _entry(read_object(file.read(FILE_BYTES_MAX)))
    except (OSError, ValueError, TypeError):
        return None


def _entry(values: dict[str, Any]) -> Entry:
    """Raises TypeError or ValueError. Fields that a later version may add are left out."""
    known = {name: value for name, value in values.items() if name in Entry._fields}
    for name in ("amqp_ports", "amqps_ports", "tls"):
        if known.get(name) is not None:
            known[name] = tuple(known[name])
    entry = Entry(**known)
    if not (isinstance(entry.name, str) and isinstance(entry.pid, int) and isinstance(entry.port, int)):
        raise TypeError("no entry")
    return entry


def _remove_stale(where: str) -> None:
    for path, entry in _read_all(where):
        if entry is not None and not is_running(entry):
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass
