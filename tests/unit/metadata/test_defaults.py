from __future__ import annotations

from leveret.metadata.defaults import first_boot
from leveret.metadata.model.records import Permission
from leveret.metadata.rules.passwords import SHA512, verify_password
from leveret.metadata.rules.permissions import Permissions
from leveret.metadata.store import Metadata


def booted(**settings: object) -> Metadata:
    store = Metadata()
    for command in first_boot(b"salt", **settings):  # type: ignore[arg-type]
        assert store.apply(command).refused is None
    return store


def test_guest_rules_the_first_vhost() -> None:
    store = booted()
    guest = store.users["guest"]
    assert guest.tags == ("administrator",)
    assert verify_password("guest", guest.password_hash, guest.hashing)
    assert Permissions(store).check("guest", "/", "queue", "q", "configure")


def test_other_defaults() -> None:
    store = booted(
        default_user="ann",
        default_pass="secret",
        default_vhost="v",
        default_permissions=Permission("a", "b", "c"),
        default_user_tags=["monitoring", "policymaker"],
        hashing=SHA512,
    )
    assert list(store.vhosts) == ["v"]
    assert verify_password("secret", store.users["ann"].password_hash, SHA512)
    assert store.users["ann"].tags == ("monitoring", "policymaker")
    assert store.permissions == {("ann", "v"): Permission("a", "b", "c")}
