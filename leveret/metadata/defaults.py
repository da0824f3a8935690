"""The first commands of a new cluster."""

from __future__ import annotations

from collections.abc import Sequence

from leveret.metadata.model.commands import AddVhost, Command, PutUser, SetPermissions
from leveret.metadata.model.records import Permission
from leveret.metadata.rules.passwords import SHA256, hash_password

FULL_PERMISSIONS = Permission(".*", ".*", ".*")


def first_boot(
    salt: bytes,
    default_user: str = "guest",
    default_pass: str = "guest",
    default_vhost: str = "/",
    default_permissions: Permission = FULL_PERMISSIONS,
    default_user_tags: Sequence[str] = ("administrator",),
    hashing: str = SHA256,
) -> tuple[Command, ...]:
    """Return the commands that make the default vhost and the default user. `salt`: four random bytes."""
    return (
        AddVhost(default_vhost, "Default virtual host"),
        PutUser(default_user, hash_password(default_pass, salt, hashing), hashing, tuple(default_user_tags)),
        SetPermissions(default_user, default_vhost, *default_permissions),
    )
