"""The changes of the state of MQTT clients, as `metadata.model.events` has them for everything else."""

from __future__ import annotations

from dataclasses import dataclass

from leveret.metadata.mqtt.records import ClientSession, DueWill


@dataclass(frozen=True, slots=True)
class RetainedChanged:
    """The retained message of a topic was kept, replaced or deleted."""

    vhost: str
    topic: str


@dataclass(frozen=True, slots=True)
class RetainedRefused:
    """A message was not kept, because its vhost has as many as it may; nothing has changed."""

    vhost: str
    topic: str


@dataclass(frozen=True, slots=True)
class SessionChanged:
    """A session has begun (`old` is None), changed, or ended (`new` is None)."""

    old: ClientSession | None
    new: ClientSession | None
    is_present: bool = True  # Of a claim: the session is the one that was there before.


@dataclass(frozen=True, slots=True)
class WillDue:
    """A will is to be published."""

    will: DueWill
