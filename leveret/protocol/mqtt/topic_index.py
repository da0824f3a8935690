"""Two indexes: which filters match a topic (`FilterIndex`), and which topics match a filter (`TopicIndex`).

Both are trees with one node for each level, and both walk them with a list of their own instead of recursion, since
names have up to 128 levels. The walk of a topic through filters visits at most three nodes for each on its way (the
level, `+` and `#`); the walk of a filter through topics visits only what begins with its literal levels.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

V = TypeVar("V")
K = TypeVar("K", bound=Hashable)


class _Node(Generic[V]):
    __slots__ = ("children", "name", "value")

    def __init__(self) -> None:
        self.children: dict[str, _Node[V]] | None = None
        self.name = ""  # The whole name or filter, where a value is.
        self.value: V | None = None


def _descend(root: _Node[V], name: str) -> _Node[V]:
    """The node of a name, which is made if need be."""
    node = root
    for level in name.split("/"):
        if node.children is None:
            node.children = {}
        child = node.children.get(level)
        if child is None:
            child = node.children[level] = _Node()
        node = child
    return node


def _path(root: _Node[V], name: str) -> list[_Node[V]] | None:
    """The nodes from the root to that of a name; None where there is none."""
    path = [root]
    for level in name.split("/"):
        child = None if path[-1].children is None else path[-1].children.get(level)
        if child is None:
            return None
        path.append(child)
    return path


def _prune(path: list[_Node[V]], name: str) -> None:
    """Take away nodes at the end of a path that lead to nothing."""
    levels = name.split("/")
    while len(path) > 1 and path[-1].value is None and path[-1].children is None:
        path.pop()
        children = path[-1].children
        assert children is not None  # The node just taken off was one of them.
        del children[levels[len(path) - 1]]
        if not children:
            path[-1].children = None


class TopicIndex(Generic[V]):
    """Values by topic name, found by filter. A value is never None."""

    def __init__(self) -> None:
        self._root: _Node[V] = _Node()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, name: str) -> V | None:
        path = _path(self._root, name)
        return None if path is None else path[-1].value

    def put(self, name: str, value: V) -> V | None:
        """Set the value of a name. Gives the one that it replaces."""
        node = _descend(self._root, name)
        before, node.value, node.name = node.value, value, name
        self._count += before is None
        return before

    def remove(self, name: str) -> V | None:
        """Gives the value that is gone; None if there was none."""
        path = _path(self._root, name)
        if path is None or path[-1].value is None:
            return None
        before, path[-1].value, path[-1].name = path[-1].value, None, ""
        self._count -= 1
        _prune(path, name)
        return before

    def items(self) -> Iterator[tuple[str, V]]:
        """All names with their values. Nothing may be put or removed meanwhile."""
        return self._below(self._root, False)

    def find(self, topic_filter: str) -> Iterator[tuple[str, V]]:
        """The names that a valid filter matches, with their values as they are when they are come to. Of names that are
        put meanwhile some are found. Of those that are there all the time each is found once."""
        levels = topic_filter.split("/")
        states: list[tuple[_Node[V], int]] = [(self._root, 0)]
        while states:
            node, at = states.pop()
            if at == len(levels):
                if node.value is not None:
                    yield node.name, node.value
                continue
            level, children = levels[at], node.children
            if level == "#":
                yield from self._below(node, at == 0)
            elif children is None:
                continue
            elif level == "+":
                states.extend((child, at + 1) for word, child in children.items() if at or not word.startswith("$"))
            elif (child := children.get(level)) is not None:
                states.append((child, at + 1))

    def _below(self, top: _Node[V], without_dollar: bool) -> Iterator[tuple[str, V]]:
        """Everything at a node and below. `without_dollar`: except the names that begin with `$`."""
        if top.value is not None:
            yield top.name, top.value
        if top.children is None:
            return
        stack = [child for word, child in top.children.items() if not (without_dollar and word.startswith("$"))]
        while stack:
            node = stack.pop()
            if node.value is not None:
                yield node.name, node.value
            if node.children is not None:
                stack.extend(node.children.values())


class FilterIndex(Generic[K, V]):
    """Values by filter and key (a filter may have several keys: its subscribers), found by topic name."""

    def __init__(self) -> None:
        self._root: _Node[dict[K, V]] = _Node()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, topic_filter: str, key: K, value: V) -> V | None:
        """Set the value of a filter and key. Gives the one that it replaces."""
        node = _descend(self._root, topic_filter)
        if node.value is None:
            node.value, node.name = {}, topic_filter
        before = node.value.get(key)
        self._count += key not in node.value
        node.value[key] = value
        return before

    def remove(self, topic_filter: str, key: K) -> V | None:
        """Gives the value that is gone; None if there was none."""
        path = _path(self._root, topic_filter)
        if path is None or path[-1].value is None or key not in path[-1].value:
            return None
        before = path[-1].value.pop(key)
        self._count -= 1
        if not path[-1].value:
            path[-1].value, path[-1].name = None, ""
            _prune(path, topic_filter)
        return before

    def values(self, name: str) -> list[V]:
        """The values of the filters that match a valid name."""
        found = self._walk(name.split("/"))
        if len(found) == 1 and found[0].value is not None:
            return list(found[0].value.values())
        return [one for node in found for one in (node.value or {}).values()]

    def find(self, name: str) -> Iterator[tuple[str, K, V]]:
        """The filters that match a valid name. Nothing may be put or removed meanwhile."""
        for node in self._walk(name.split("/")):
            assert node.value is not None
            for key, value in node.value.items():
                yield node.name, key, value

    def _walk(self, levels: list[str]) -> list[_Node[dict[K, V]]]:
        found: list[_Node[dict[K, V]]] = []
        states: list[tuple[_Node[dict[K, V]], int]] = [(self._root, 0)]
        dollar = levels[0].startswith("$")
        while states:
            node, at = states.pop()
            children = node.children
            if at == len(levels) and node.value is not None:
                found.append(node)
            if children is None:
                continue
            wild = at > 0 or not dollar
            if wild and (rest := children.get("#")) is not None:
                found.append(rest)
            if at == len(levels):
                continue
            if wild and (one := children.get("+")) is not None:
                states.append((one, at + 1))
            if (child := children.get(levels[at])) is not None:
                states.append((child, at + 1))
        return found
