"""Leveret answers what RabbitMQ answered when it was recorded; what differs is listed, and what is listed differs."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveret.protocol import methods as m
from tests.support.machines import Conversation, Reply
from tests.system.compare.printing import Names
from tests.system.compare.running import Records, keyed, run
from tests.system.compare.script import BadScript, expand, is_shared, read_topic, topics
from tests.system.compare.session import ChannelState, confirms
from tests.system.compare.targets import leveret
from tests.system.compare.verdict import DIFFERENCES, PENDING, Key, compare, is_recorded, listed, load_record


@pytest.fixture(scope="module")
def ours(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Records:
    """All topics of the tests that were chosen at once: most of the time is waiting."""
    chosen = {item.callspec.params.get("topic") for item in request.session.items if hasattr(item, "callspec")}
    names = [name for name in topics() if name in chosen]
    with leveret(tmp_path_factory.mktemp("compare")) as target:
        return run(target, keyed({name: compared(name) for name in names}), recorded(names))


def compared(topic: str) -> list[Conversation]:
    """Of those that the machines are tested with, the ones that RabbitMQ was asked: the others have answers by them."""
    record = load_record(topic)
    return [each for each in read_topic(topic) if not is_shared(topic) or is_recorded(each, record)]


def recorded(names: list[str]) -> Records:
    return {(name, title): steps for name in names for title, steps in load_record(name).items()}


@pytest.mark.parametrize("topic", topics())
def test_topic(topic: str, ours: Records) -> None:
    theirs = recorded([topic])
    conversations = compared(topic)
    unknown = [each.title for each in conversations if not is_recorded(each, load_record(topic))]
    assert not unknown, f"make compare RECORD=1 TOPICS={topic}; not recorded as they are now: {unknown}"
    keys = [(topic, each.title) for each in conversations]
    found = {key: difference for key in keys if (difference := compare(key, theirs[key], ours[key]))}
    expected = {key for key in listed(DIFFERENCES) | listed(PENDING) if key in keys}
    unexpected = [str(difference) for key, difference in found.items() if key not in expected]
    assert not unexpected, "\n".join(["these differ from RabbitMQ:", *unexpected])
    same = expected - set(found)
    assert not same, (
        f"these are listed, and differ no more (python -m tests.system.compare --recorded --prune): {sorted(same)}"
    )


def test_conversations_of_the_machines_are_among_the_topics() -> None:
    assert any(is_shared(topic) for topic in topics())


def test_lists_name_conversations_that_there_are() -> None:
    keys: set[Key] = {(topic, each.title) for topic in topics() for each in read_topic(topic)}
    assert listed(DIFFERENCES) | listed(PENDING) <= keys
    assert not listed(DIFFERENCES) & listed(PENDING)


def test_expansion() -> None:
    made = expand(Conversation("$a of $b", ["* a: 1 | 2", "* b: x | y", "a1 $a $b", "    < a1 answer"]))
    assert [each.title for each in made] == ["1 of x", "1 of y", "2 of x", "2 of y"]
    assert made[0].lines == ["a1 1 x"]
    with pytest.raises(BadScript, match="no values"):
        expand(Conversation("t", ["a1 $c"]))


def test_a_difference_is_shown() -> None:
    step = ("a1 tx.select", ["    < a1 tx.select_ok"])
    assert compare(("t", "x"), [step], [step]) is None
    found = compare(("t", "x"), [step], [("a1 tx.select", [])])
    assert str(found) == "t: x\n  a1 tx.select\n  - a1 tx.select_ok"
    assert compare(("t", "x"), [step], [step, ("the end", ["    < a closed"])]) is not None
    assert "was changed" in str(compare(("t", "x"), [step], [("a1 tx.commit", [])]))


def test_names_are_shown_by_number_and_understood() -> None:
    names = Names("F", "rabbit@host")
    assert names.show("queue='amq.gen-0123456789012345678901' in vhost \\'F\\'") == "queue='amq.gen-1' in vhost \\'/\\'"
    assert names.show("reply_to='amq.rabbitmq.reply-to.g1h2.x=='") == "reply_to='amq.rabbitmq.reply-to.2'"
    assert names.show("'vhost': 'F', 'node': 'rabbit@host'") == "'vhost': '/', 'node': 'node@host'"
    assert names.understand("a1 queue.delete queue='amq.gen-1'").endswith("'amq.gen-0123456789012345678901'")
    assert names.understand("a1 x queue='amq.gen-9'").endswith("'amq.gen-9'")


def test_confirms_are_told_one_by_one() -> None:
    state = ChannelState()
    state.unconfirmed = [1, 2, 3, 4]
    replies = [Reply(1, m.BasicNack(3)), Reply(1, m.BasicAck(4, multiple=True))]
    assert confirms(state, replies) == ["basic.ack 1", "basic.ack 2", "basic.nack 3", "basic.ack 4"]
    assert state.unconfirmed == []


def test_a_list_is_read(tmp_path: Path) -> None:
    file = tmp_path / "list.md"
    file.write_text("# Head\n\nWhy.\n\n- `ttl: a: b`, and more\n- no entry\n")
    assert listed(file) == {("ttl", "a: b")}
