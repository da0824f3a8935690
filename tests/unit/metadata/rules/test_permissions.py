from __future__ import annotations

import pytest

from leveret.base.safe_regex import error_of
from leveret.metadata.model import commands as c
from leveret.metadata.rules.permissions import Permissions, Which, refused_text, topic_refused_text
from leveret.metadata.store import Metadata


@pytest.fixture
def store() -> Metadata:
    metadata = Metadata()
    metadata.apply(c.AddVhost("/"))
    metadata.apply(c.PutUser("u", "", ""))
    return metadata


@pytest.mark.parametrize(
    ("pattern", "name", "allowed"),
    [
        (".*", "q", True),
        (".*", "", True),
        ("", "q", False),
        ("", "", True),
        ("log", "catalogue", True),
        ("log", "cat", False),
        ("^log", "catalog", False),
        ("^log$", "log", True),
        ("^(a|b)-", "b-1", True),
        ("amq\\.gen.*", "amq.gen-x", True),
        ("(", "q", False),
    ],
)
def test_patterns_are_searched_for(store: Metadata, pattern: str, name: str, allowed: bool) -> None:
    store.apply(c.SetPermissions("u", "/", pattern, pattern, pattern))
    which: Which
    for which in ("configure", "write", "read"):
        assert Permissions(store).check("u", "/", "queue", name, which) == allowed


def test_each_pattern_has_its_use(store: Metadata) -> None:
    store.apply(c.SetPermissions("u", "/", "^c$", "^w$", "^r$"))
    permissions = Permissions(store)
    which: Which
    for which in ("configure", "write", "read"):
        for name in "cwr":
            assert permissions.check("u", "/", "exchange", name, which) == (which[0] == name)


def test_the_default_exchange_has_a_name(store: Metadata) -> None:
    store.apply(c.SetPermissions("u", "/", "", r"^amq\.default$", ""))
    permissions = Permissions(store)
    assert permissions.check("u", "/", "exchange", "", "write")
    assert not permissions.check("u", "/", "queue", "", "write")
    assert (
        refused_text("u", "/", "exchange", "") == "access to exchange 'amq.default' in vhost '/' refused for user 'u'"
    )


def test_a_change_is_in_force_at_once(store: Metadata) -> None:
    permissions = Permissions(store)
    assert not permissions.may_enter("u", "/")
    assert not permissions.check("u", "/", "queue", "q", "read")
    store.apply(c.SetPermissions("u", "/", "", "", "q"))
    assert permissions.may_enter("u", "/")
    assert permissions.check("u", "/", "queue", "q", "read")
    store.apply(c.SetPermissions("u", "/", "", "", "p"))
    assert not permissions.check("u", "/", "queue", "q", "read")
    store.apply(c.ClearPermissions("u", "/"))
    assert not permissions.may_enter("u", "/")


def test_topics(store: Metadata) -> None:
    permissions = Permissions(store)
    assert permissions.check_topic("u", "/", "t", "any", "write")
    store.apply(c.SetTopicPermissions("u", "/", "t", "^a\\.", ""))
    assert permissions.check_topic("u", "/", "t", "a.b", "write")
    assert not permissions.check_topic("u", "/", "t", "b", "write")
    assert not permissions.check_topic("u", "/", "t", "a.b", "read")
    assert permissions.check_topic("u", "/", "other", "b", "write")


def test_variables_in_topic_patterns(store: Metadata) -> None:
    store.apply(c.PutUser(".*", "", ""))
    permissions = Permissions(store)
    for user in ("u", ".*"):
        store.apply(c.SetTopicPermissions(user, "/", "t", "^{username}\\.{client_id}$", "{vhost}"))
    assert permissions.check_topic("u", "/", "t", "u.7", "write", {"client_id": "7"})
    assert not permissions.check_topic("u", "/", "t", "u.8", "write", {"client_id": "7"})
    assert permissions.check_topic("u", "/", "t", "a/b", "read")
    assert not permissions.check_topic(".*", "/", "t", "u.7", "write", {"client_id": "7"})
    assert permissions.check_topic(".*", "/", "t", ".*.7", "write", {"client_id": "7"})


def test_texts() -> None:
    assert refused_text("u", "/", "queue", "q") == "access to queue 'q' in vhost '/' refused for user 'u'"
    assert (
        topic_refused_text("u", "/", "x", "k")
        == "access to topic 'k' in exchange 'x' in vhost '/' refused for user 'u'"
    )


def test_a_pattern_that_does_not_compile_is_told() -> None:
    assert error_of("^a.*$") is None
    assert "unterminated" in (error_of("(") or "")
