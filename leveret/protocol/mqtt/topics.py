"""Topic names and topic filters: what is valid, and which filter matches which name.

A name has levels, separated by `/`; a level may be empty. In a filter, `+` stands for exactly one level and `#`, as the
last level, for its parent and everything below. A filter that begins with a wildcard matches no name that begins with
`$`. The rules are the same in all versions of MQTT. The limit of 128 levels is our own, and keeps the work small that
one name can cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

BYTES_MAX: Final = 65_535
LEVELS_MAX: Final = 128
SHARE: Final = "$share/"


class BadTopic(ValueError):
    """A topic name or filter is not valid. The text says why."""


class SharedFilter(NamedTuple):
    """A filter as a client subscribes to it: `$share/group/filter`, or a plain one, with an empty group."""

    group: str
    filter: str


def text_of(data: bytes) -> str:
    """Decode an MQTT string. Raises `BadTopic` where it is not UTF-8, or has the character U+0000."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise BadTopic(f"not UTF-8: {error.reason}") from None
    if "\0" in text:
        raise BadTopic("the character U+0000 is not allowed")
    return text


def check_name(name: str) -> None:
    """Raise `BadTopic` unless this is the name of a topic, to which messages can be published."""
    if "+" in name or "#" in name:
        raise BadTopic("a topic name has no wildcards")
    _check_size(name)


def check_filter(topic_filter: str) -> None:
    """Raise `BadTopic` unless this is a filter. `$share/…` has to be taken off before: see `parse_shared`."""
    _check_size(topic_filter)
    if "+" not in topic_filter and "#" not in topic_filter:
        return
    levels = topic_filter.split("/")
    for at, level in enumerate(levels):
        if len(level) > 1 and ("+" in level or "#" in level):
            raise BadTopic(f"the wildcard in '{level}' is not a level of its own")
        if level == "#" and at < len(levels) - 1:
            raise BadTopic("# is not the last level")


def _check_size(text: str) -> None:
    if not text:
        raise BadTopic("the topic is empty")
    if "\0" in text:
        raise BadTopic("the character U+0000 is not allowed")
    if len(text) > BYTES_MAX // 4 and len(text.encode()) > BYTES_MAX:
        raise BadTopic(f"more than {BYTES_MAX} bytes")
    if text.count("/") >= LEVELS_MAX:
        raise BadTopic(f"more than {LEVELS_MAX} levels")


def is_shared(subscription: str) -> bool:
    """A subscription of this text is meant to be shared, whether it is a valid one or not."""
    return subscription.startswith(SHARE) or subscription == "$share"


def parse_shared(subscription: str) -> SharedFilter:
    """Take a subscription apart, and check it. Raises `BadTopic`."""
    if not is_shared(subscription):
        check_filter(subscription)
        return SharedFilter("", subscription)
    group, slash, topic_filter = subscription[len(SHARE) :].partition("/")
    if not group or not slash:
        raise BadTopic("a shared subscription is $share/group/filter")
    if "+" in group or "#" in group:
        raise BadTopic("the name of a group has no wildcards")
    check_filter(topic_filter)
    return SharedFilter(group, topic_filter)


def matches(topic_filter: str, name: str) -> bool:
    """The filter matches the name. Both are valid."""
    if "+" not in topic_filter and "#" not in topic_filter:
        return topic_filter == name
    return levels_match(topic_filter.split("/"), name.split("/"))


def levels_match(wanted: Sequence[str], levels: Sequence[str]) -> bool:
    """The same, for a filter and a name that are taken apart."""
    if wanted[0] in ("+", "#") and levels[0].startswith("$"):
        return False
    for at, level in enumerate(wanted):
        if level == "#":
            return True
        if at == len(levels):
            return False
        if level not in ("+", levels[at]):
            return False
    return len(wanted) == len(levels)
