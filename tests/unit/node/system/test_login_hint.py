"""What a new user is told when a node is ready."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leveret.metadata.model.records import UserSpec
from leveret.metadata.rules.passwords import SHA256, hash_password
from leveret.metadata.store import Metadata
from leveret.node.config.settings import Settings
from leveret.node.server import login_hint

SETTINGS = Settings(data_dir="/data")


def metadata(name: str, password: str) -> Metadata:
    made = Metadata()
    made.users[name] = UserSpec(name, hash_password(password, b"salt"), SHA256)
    return made


@pytest.mark.parametrize(
    ("settings", "user", "password", "told"),
    [
        (SETTINGS, "guest", "guest", "log in as guest, password guest, from this machine only"),
        (replace(SETTINGS, loopback_users=frozenset()), "guest", "guest", "log in as guest, password guest"),
        (SETTINGS, "guest", "changed", "log in with a user of this broker"),
        (SETTINGS, "ann", "guest", "log in with a user of this broker"),
        (
            replace(SETTINGS, default_user="ann", default_pass="geheim"),
            "ann",
            "geheim",
            "log in as ann, the password of the configuration",
        ),
    ],
)
def test_who_can_log_in(settings: Settings, user: str, password: str, told: str) -> None:
    assert login_hint(settings, metadata(user, password)) == told
