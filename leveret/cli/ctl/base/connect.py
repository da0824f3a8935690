"""Which node is meant, where it is, and with which secret it is spoken to.

Without options the node is found by the registry (`leveret.node.system.local_registry`), and its cookie in its data
folder. Each part can be given instead: the name with -n, the address with --host and --port, the cookie with
--cookie-file, LEVERET_COOKIE_FILE or LEVERET_COOKIE.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, NamedTuple

from leveret.base.control_protocol import ONE_LINE, VALIDATION
from leveret.base.exit_codes import CONFIG, UNAVAILABLE, USAGE
from leveret.cli.ctl.base.command import Failed, Given
from leveret.node.sockets.cookie import ERLANG_FILE, FILE_NAME, BadCookie, read_cookie
from leveret.node.system import local_registry

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 25_672
DATA_FOLDER: Final = "~/.leveret"
NAME_VARIABLES: Final = ("LEVERET_NODE_NAME", "RABBITMQ_NODENAME")
COOKIE_VARIABLES: Final = ("LEVERET_COOKIE", "RABBITMQ_ERLANG_COOKIE")
COOKIE_FILE_VARIABLE: Final = "LEVERET_COOKIE_FILE"


class Target(NamedTuple):
    """A node to talk to."""

    host: str
    port: int
    name: str | None  # None: it will say
    cookie: bytes
    cookie_from: str  # for people
    tls: tuple[str, str, str] | None = None  # certificate, key, authority
    entry: local_registry.Entry | None = None

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __repr__(self) -> str:
        return f"Target({self.address}, {self.name})"  # Without the cookie.


class NodeAddress(NamedTuple):
    """Parse the argument of `join_cluster`: `name@host`, `name@host:port` or `host:port`."""

    host: str
    port: int
    name: str | None


def find_target(given: Given, environ: Mapping[str, str] = os.environ) -> Target:
    """Raises Failed."""
    name = str(given.switches["node"]) if "node" in given.switches else _first(environ, NAME_VARIABLES)
    host, port = DEFAULT_HOST, DEFAULT_PORT
    entry: local_registry.Entry | None = None
    if "host" in given.switches or "port" in given.switches:
        host, port = given.text("host", DEFAULT_HOST), int(given.text("port", str(DEFAULT_PORT)))
        entry = local_registry.at_address(host, port)
    elif name is not None and ":" in name:
        host, port, name = parse_address(name)
        entry = local_registry.at_address(host, port)
    else:
        try:
            entry = local_registry.find(name)
            host, port, name = entry.host, entry.port, entry.name
        except local_registry.NotFound as error:
            if error.known or name is not None:
                raise Failed(UNAVAILABLE, _not_found(str(error)), ONE_LINE) from None
    tls = _tls(given) or (entry.tls if entry is not None else None)
    if entry is None and not _cookie_given(given, environ) and not os.path.exists(_default_cookie(name)):
        raise Failed(UNAVAILABLE, _nothing_known(name, host, port), ONE_LINE)
    cookie, source = _cookie(given, environ, entry, name)
    return Target(host, port, name, cookie, source, tls, entry)


def parse_address(text: str) -> NodeAddress:
    """Raises Failed."""
    name, at, place = text.rpartition("@")
    host, colon, port = place.rpartition(":")
    if not colon or (place.startswith("[") and place.endswith("]")):
        if not at:
            raise Failed(
                USAGE, f"'{text}' is not a node: use name@host, name@host:clusterport or host:clusterport", VALIDATION
            )
        return _by_name(text, place)
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise Failed(USAGE, f"'{text}' has no valid port: use host:clusterport", VALIDATION)
    return NodeAddress(host.strip("[]"), int(port), text.removesuffix(f":{port}") if name else None)


def _by_name(name: str, host: str) -> NodeAddress:
    """The one on this machine that is called so; else where a node of that host would be by default."""
    try:
        entry = local_registry.find(name)
    except local_registry.NotFound:
        return NodeAddress(host.strip("[]"), DEFAULT_PORT, name)
    return NodeAddress(entry.host, entry.port, name)


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((environ[name] for name in names if environ.get(name)), None)


def _tls(given: Given) -> tuple[str, str, str] | None:
    names = ("tls-cert-file", "tls-key-file", "tls-ca-cert-file")
    files = [str(given.switches[name]) for name in names if name in given.switches]
    if not files:
        return None
    if len(files) < len(names):
        raise Failed(USAGE, f"TLS needs all of {', '.join('--' + name for name in names)}", VALIDATION)
    return files[0], files[1], files[2]


def _default_cookie(name: str | None) -> str:
    """Return the cookie file of a node of this user; else Erlang's, which a node without its own uses."""
    own = os.path.join(os.path.expanduser(DATA_FOLDER), name or local_registry.DEFAULT_NAME, FILE_NAME)
    theirs = os.path.join(os.path.expanduser("~"), ERLANG_FILE)
    return theirs if os.path.exists(theirs) and not os.path.exists(own) else own


def _cookie_given(given: Given, environ: Mapping[str, str]) -> bool:
    return "cookie-file" in given.switches or bool(
        environ.get(COOKIE_FILE_VARIABLE) or _first(environ, COOKIE_VARIABLES)
    )


def _cookie(
    given: Given, environ: Mapping[str, str], entry: local_registry.Entry | None, name: str | None
) -> tuple[bytes, str]:
    """The cookie, and where it came from."""
    file = given.switches.get("cookie-file") or environ.get(COOKIE_FILE_VARIABLE)
    value = _first(environ, COOKIE_VARIABLES)
    if file is None and value is not None:
        return value.strip().encode("utf-8", "surrogateescape"), "the environment"
    if file is None and entry is not None:
        file = entry.cookie_file or os.path.join(entry.data_dir, FILE_NAME)
    path = str(file) if file is not None else _default_cookie(name)
    try:
        return read_cookie(path), path
    except BadCookie as error:
        raise Failed(CONFIG, str(error), ONE_LINE) from None


def _not_found(text: str) -> str:
    return (
        f"{text}.\n\n"
        "To reach a node of another user or on another machine:\n"
        "  leveretctl --host HOST --port CLUSTERPORT --cookie-file FILE ..."
    )


def _nothing_known(name: str | None, host: str, port: int) -> str:
    return (
        f"no node of this user runs on this machine, and there is no cookie for one at {host}:{port}.\n\n"
        "Start a node:            leveret server\n"
        "Or name its address:     leveretctl --host HOST --port CLUSTERPORT --cookie-file FILE ...\n"
        f"(a node's cookie is in its data folder, {_default_cookie(name)} by default)"
    )
