"""Whether a node may run shovels and federation links."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.metadata.store import Applied, Metadata
from leveret.node.shovels.standing import Standing


class Node:
    """A node that sees a majority or not. What it proposes is agreed on when the test says so."""

    def __init__(self) -> None:
        self.broker = SimpleNamespace(arrivals=SimpleNamespace(is_open=True))
        self.pausing = SimpleNamespace(paused=False)
        self.fatal: str | None = None
        self.cluster = SimpleNamespace(has_majority=True)
        self.metadata = Metadata()
        self.asked: list[tuple[Any, Callable[[Applied], None]]] = []

    def propose(self, command: Any, then: Callable[[Applied], None], patient: bool = False) -> None:
        assert patient
        self.asked.append((command, then))

    def agree(self) -> None:
        command, then = self.asked.pop(0)
        then(self.metadata.apply(command))


@pytest.fixture
def node() -> Node:
    return Node()


def looked(node: Node) -> Standing:
    standing = Standing(cast(Any, node))
    standing.look()
    return standing


def test_it_catches_up_first(node: Node) -> None:
    standing = looked(node)
    assert not standing.may_act()
    standing.look()
    assert len(node.asked) == 1, "it asks once"
    node.agree()
    assert standing.may_act()


def test_a_majority_that_is_seen_again_does_not_do(node: Node) -> None:
    """What was agreed on meanwhile is not applied yet: another node may run what this one ran."""
    standing = looked(node)
    node.agree()
    node.cluster.has_majority = False
    assert not standing.may_act()
    standing.look()
    node.cluster.has_majority = True
    standing.look()
    assert not standing.may_act()
    node.agree()
    assert standing.may_act()


def test_an_answer_from_before_the_loss_does_not_count(node: Node) -> None:
    standing = looked(node)
    node.cluster.has_majority = False
    standing.look()
    node.cluster.has_majority = True
    standing.look()
    node.agree()
    assert not standing.may_act()
    standing.look()
    node.agree()
    assert standing.may_act()


@pytest.mark.parametrize("what", ["closed", "paused", "fatal"])
def test_a_node_that_does_not_serve(node: Node, what: str) -> None:
    standing = looked(node)
    node.agree()
    if what == "closed":
        node.broker.arrivals.is_open = False
    elif what == "paused":
        node.pausing.paused = True
    else:
        node.fatal = "a failed sync"
    assert not standing.may_act()
    standing.look()
    assert not node.asked
