from __future__ import annotations

from leveret.metadata.model import commands as c
from leveret.metadata.mqtt.commands import KeepRetained, RetainedRow
from leveret.metadata.mqtt.events import RetainedChanged, RetainedRefused
from leveret.metadata.mqtt.records import RetainedMessage
from leveret.metadata.store import Applied, Metadata

MANY = 1000


def store() -> Metadata:
    metadata = Metadata()
    metadata.apply(c.AddVhost("/"))
    metadata.apply(c.AddVhost("other"))
    return metadata


def keep(
    metadata: Metadata, topic: str, payload: bytes, vhost: str = "/", *, count: int = MANY, size: int = MANY
) -> Applied:
    row = RetainedRow(vhost, topic, RetainedMessage(topic, payload))
    return metadata.apply(KeepRetained((row,), count, size))


def delete(metadata: Metadata, topic: str, vhost: str = "/", expires_ms: int = 0) -> Applied:
    return metadata.apply(KeepRetained((RetainedRow(vhost, topic, None, expires_ms),), MANY, MANY))


def kept(metadata: Metadata, vhost: str = "/") -> dict[str, bytes]:
    return {topic: message.payload for topic, message in metadata.retained.by_vhost.get(vhost, {}).items()}


def test_the_last_message_of_a_topic_is_kept() -> None:
    metadata = store()
    assert keep(metadata, "a", b"1").events == (RetainedChanged("/", "a"),)
    keep(metadata, "a", b"2")
    keep(metadata, "a", b"3", "other")
    assert kept(metadata) == {"a": b"2"} and kept(metadata, "other") == {"a": b"3"}
    assert metadata.retained.bytes == {"/": 2, "other": 2}


def test_a_deletion_removes_what_is_there() -> None:
    metadata = store()
    keep(metadata, "a", b"1")
    assert delete(metadata, "b").events == ()
    assert delete(metadata, "a").events == (RetainedChanged("/", "a"),)
    assert not metadata.retained.by_vhost and not metadata.retained.bytes


def test_an_expired_message_is_deleted_unless_another_has_come() -> None:
    metadata = store()
    for expires_ms in (5, 7):
        message = RetainedMessage("a", b"x", expires_ms=expires_ms)
        metadata.apply(KeepRetained((RetainedRow("/", "a", message),), MANY, MANY))
    assert delete(metadata, "a", expires_ms=5).events == ()
    assert delete(metadata, "a", expires_ms=7).events == (RetainedChanged("/", "a"),)


def test_limits_are_those_of_the_vhost() -> None:
    metadata = store()
    keep(metadata, "a", b"123")
    assert keep(metadata, "b", b"1", count=1).events == (RetainedRefused("/", "b"),)
    assert keep(metadata, "b", b"1", "other", count=1).events == (RetainedChanged("other", "b"),)
    assert keep(metadata, "b", b"12", size=6).events == (RetainedRefused("/", "b"),)
    assert keep(metadata, "b", b"1", size=6).events == (RetainedChanged("/", "b"),)
    # What replaces something that is not smaller is kept, even if the limits were lowered.
    assert keep(metadata, "a", b"321", count=0, size=0).events == (RetainedChanged("/", "a"),)
    assert keep(metadata, "a", b"4321", count=0, size=0).events == (RetainedRefused("/", "a"),)
    assert kept(metadata) == {"a": b"321", "b": b"1"}


def test_a_vhost_takes_its_messages_along() -> None:
    metadata = store()
    keep(metadata, "a", b"1", "other")
    assert RetainedChanged("other", "a") in metadata.apply(c.DeleteVhost("other")).events
    assert keep(metadata, "a", b"1", "other").events == (RetainedRefused("other", "a"),)
    assert not metadata.retained.by_vhost


def test_a_frozen_copy_stays_as_it_was() -> None:
    metadata = store()
    keep(metadata, "a", b"1")
    frozen = metadata.frozen()
    before = frozen.snapshot()
    keep(metadata, "a", b"2")
    keep(metadata, "b", b"2")
    assert frozen.snapshot() == before
