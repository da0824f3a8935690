"""Password hashes as RabbitMQ stores and exports them: base64 of four bytes of salt and the hash of salt + password.

A salted fast hash is weak by today's standards, but every exported definitions file contains it and every tool that
makes users computes it; another format would lock those users out. The salt comes from the caller, as all randomness
does. No function here puts a password or a hash into an error's text.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable
from functools import partial
from typing import Any, Final

SHA256: Final = "rabbit_password_hashing_sha256"
SHA512: Final = "rabbit_password_hashing_sha512"
MD5: Final = "rabbit_password_hashing_md5"  # For users from before RabbitMQ 3.6 whose passwords have not changed since.
SALT_BYTES: Final = 4

_ALGORITHMS: Final[dict[str, Callable[[bytes], Any]]] = {
    SHA256: hashlib.sha256,
    SHA512: hashlib.sha512,
    MD5: partial(hashlib.md5, usedforsecurity=False),
}


class UnknownHashing(ValueError):
    """A password hashing module is unknown."""


def known_hashing(hashing: str) -> bool:
    """Return whether passwords of a hashing module can be checked; ask before storing a user that names it."""
    return hashing in _ALGORITHMS


def hash_password(password: str, salt: bytes, hashing: str = SHA256) -> str:
    """Return the hash to store for a password. `salt`: four random bytes."""
    if len(salt) != SALT_BYTES:
        raise ValueError(f"a salt of {len(salt)} bytes; RabbitMQ's format has {SALT_BYTES}")
    return base64.b64encode(salt + _digest(password, salt, hashing)).decode("ascii")


def verify_password(password: str, password_hash: str, hashing: str = SHA256) -> bool:
    """Return whether the password is the one that was hashed, in a time that does not tell how much of it was right.

    An empty password never matches, nor does any password match a user without a hash: both mean "no login by
    password".
    """
    try:
        stored = base64.b64decode(password_hash, validate=True)
    except (binascii.Error, ValueError):
        return False
    salt, expected = stored[:SALT_BYTES], stored[SALT_BYTES:]
    matches = hmac.compare_digest(_digest(password, salt, hashing), expected)
    return matches and bool(password)


def _digest(password: str, salt: bytes, hashing: str) -> bytes:
    if hashing not in _ALGORITHMS:
        raise UnknownHashing(f"unknown password hashing {hashing!r}")
    digest: bytes = _ALGORITHMS[hashing](salt + password.encode("utf-8", "surrogatepass")).digest()
    return digest
