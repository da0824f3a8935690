"""The secret that the nodes of a cluster share.

Anybody who has it can act as a node: read every message and change every user. So a file that other users can read is
refused, as Erlang does; a warning would come too late.

No function here puts the cookie, or a part of it, into an error's text.
"""

from __future__ import annotations

import os
import secrets
import stat
from typing import Final

FILE_NAME: Final = "cookie"
ERLANG_FILE: Final = ".erlang.cookie"
BYTES_MAX: Final = 4096
RANDOM_BYTES: Final = 32


LENGTH_LEAST: Final = 16


class BadCookie(Exception):
    """There is no cookie that could be used; the text says what to do."""


def find_cookie(data_dir: str, file: str | None = None, value: str | None = None) -> bytes:
    """Returns the cookie from the file that was named, else the value that was given, else the data folder's own file.

    The last is made if it is missing. A file that was named is not: a slip in its name would make a node that nobody
    can talk to.
    """
    if file is not None:
        return read_cookie(file)
    if value is not None:
        return _checked(value.encode("utf-8", "surrogateescape"), "the cookie that was given")
    path = os.path.join(data_dir, FILE_NAME)
    if not os.path.exists(path):
        _make(path)
    return read_cookie(path)


def inherited(data_dir: str, home: str) -> str | None:
    """Returns the user's `.erlang.cookie`, as RabbitMQ uses it, for a node that has none of its own; None without."""
    path = os.path.join(home, ERLANG_FILE)
    return path if os.path.exists(path) and not os.path.exists(os.path.join(data_dir, FILE_NAME)) else None


def weakness(cookie: bytes) -> str | None:
    """Returns a warning for an operator whose cookie can be guessed. Such a cookie still works: clusters have theirs
    already, and all nodes have to be stopped to change it."""
    if len(cookie) >= LENGTH_LEAST:
        return None
    return (
        f"the cookie has {len(cookie)} characters, which can be guessed: whoever does is a node, and may read and "
        f"change everything. Choose one of {LENGTH_LEAST} or more at random (with: openssl rand -base64 32), "
        "stop all nodes, give it to each of them and to leveretctl, and start them again"
    )


def read_cookie(path: str) -> bytes:
    """Returns the cookie in a file, without the white space around it. Raises BadCookie."""
    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)  # Of the open file, whatever has its name now.
            content = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise BadCookie(f"cannot read the cookie file {path}: {error.strerror or error}") from None
    if mode & 0o077:
        raise BadCookie(f"the cookie file {path} is open to others (mode {mode:04o}); close it with: chmod 600 {path}")
    return _checked(content, f"the cookie file {path}")


def _checked(content: bytes, what: str) -> bytes:
    cookie = content.strip()
    if not cookie:
        raise BadCookie(f"{what} is empty; delete it to have one made, or copy another node's")
    if len(content) > BYTES_MAX:
        raise BadCookie(f"{what} has more than {BYTES_MAX} bytes; that is no cookie")
    return cookie


def _make(path: str) -> None:
    """Writes a new cookie, under another name first: a node that dies meanwhile must not leave an empty cookie."""
    unfinished = f"{path}.new"
    try:
        if os.path.lexists(unfinished):
            os.unlink(unfinished)
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            file.write(secrets.token_urlsafe(RANDOM_BYTES).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.rename(unfinished, path)
    except OSError as error:
        raise BadCookie(f"cannot make the cookie file {path}: {error.strerror or error}") from None
