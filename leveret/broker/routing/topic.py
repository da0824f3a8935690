"""The topic trie: which bindings' patterns match a routing key.

A pattern and a key are words separated by dots. In a pattern `*` stands for exactly one word and `#` for any number of
words, none included. RabbitMQ's reading of the corner cases is kept: the empty key has no words at all (so `#` and the
empty pattern match it, `*` does not), every other key has one word more than it has dots, and a word may be empty
(`a..b` is three words, `.` is two empty ones). Wildcards in a published key are ordinary words.

The shape. Patterns share their beginnings in a tree. An edge of literal words carries as many of them as it can, in one
dotted string: a node exists only where patterns end, part, or meet a wildcard. So a pattern adds at most two nodes,
plus two for each wildcard in it, however long it is, and a million patterns fit in a few hundred megabytes:

    a.b.c.x   a.b.c.y   a.*.z          (root)
                                          | "a"
                                        ( . )
                              "b.c"  /        \\  *
                                  ( . )       ( . )
                            "x" /      \\ "y"     | "z"
                             (end)    (end)     (end)

A node with one literal child holds it directly; a dictionary by first word comes with the second one. Most nodes have
one child or none, and an empty dictionary weighs as much as the node itself. No two literal children of a node begin
with the same word: that is what makes the descent a look-up instead of a search.

The walk. A state (node, i) says: the path to this node matched the first i words. A literal edge or a `*` leads to one
next state. A `#` node reached at i is reached at each of i, i+1, ... too, and that is where the naive walk explodes:
under `#.#.#.#.a` each state is entered once for every way to share the words out among the hashes. But reaching a `#`
node at i already covers all that reaching it further on could. So the walk takes the positions of a `#` node in rising
order, each with all that follows from it before the next: as a path between two hashes has a fixed length, it reaches
the `#` nodes below first at their lowest position too, and from then on passes them over. Each state is entered at most
once, and the walk takes at most nodes * (words + 1) steps.

What a binding leads to is opaque here. A place in the trie holds an *entry*: the destination itself while it is the
only one, a `Many` from the second on. The same entries serve the direct exchange.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

D = TypeVar("D", bound=Hashable)


# Entries: the destinations bound at one place.


class Many(Generic[D]):
    """Two or more destinations, in the order they were bound. In a dictionary: the millionth costs as the second."""

    __slots__ = ("members", "routed")

    def __init__(self, members: dict[D, None]) -> None:
        self.members = members
        self.routed: tuple[D, ...] | None = None

    def all(self) -> tuple[D, ...]:
        if self.routed is None:
            self.routed = tuple(self.members)
        return self.routed


def holds(entry: D | Many[D] | None, destination: D) -> bool:
    if entry is None:
        return False
    return destination in entry.members if isinstance(entry, Many) else entry == destination


def joined(entry: D | Many[D] | None, destination: D) -> D | Many[D]:
    """The entry with a destination more, which it does not hold yet."""
    if entry is None:
        return destination
    if isinstance(entry, Many):
        entry.members[destination] = None
        entry.routed = None
        return entry
    return Many({entry: None, destination: None})


def parted(entry: D | Many[D], destination: D) -> D | Many[D] | None:
    """The entry without a destination, which it holds; None when nothing is left."""
    if not isinstance(entry, Many):
        return None
    del entry.members[destination]
    entry.routed = None
    return entry if len(entry.members) > 1 else next(iter(entry.members))


def united(entries: Iterable[D | Many[D]]) -> tuple[D, ...]:
    """The destinations of several entries, each once."""
    found: dict[D, None] = {}
    for entry in entries:
        if isinstance(entry, Many):
            found.update(entry.members)
        else:
            found[entry] = None
    return tuple(found)


# The trie.


def words_of(key: str) -> list[str]:
    return key.split(".") if key else []


class Node(Generic[D]):
    """`label` is the edge that leads here: `*`, `#`, or literal words with dots between."""

    __slots__ = ("children", "entry", "hash", "label", "star")

    def __init__(self, label: str) -> None:
        self.label = label
        self.children: dict[str, Node[D]] | Node[D] | None = None
        self.star: Node[D] | None = None
        self.hash: Node[D] | None = None
        self.entry: D | Many[D] | None = None

    def child(self, word: str) -> Node[D] | None:
        """The literal child whose edge begins with this word."""
        children = self.children
        if isinstance(children, dict):
            return children.get(word)
        return children if children is not None and first_word(children.label) == word else None

    def attach(self, child: Node[D]) -> None:
        """Add a literal child, or replace the one that begins with the same word."""
        children, word = self.children, first_word(child.label)
        if isinstance(children, dict):
            children[word] = child
        elif children is None or first_word(children.label) == word:
            self.children = child
        else:
            self.children = {first_word(children.label): children, word: child}

    def detach(self, child: Node[D]) -> None:
        if child is self.star:
            self.star = None
        elif child is self.hash:
            self.hash = None
        elif isinstance(self.children, dict):
            del self.children[first_word(child.label)]
            if len(self.children) == 1:
                self.children = next(iter(self.children.values()))
        else:
            assert child is self.children
            self.children = None


def first_word(label: str) -> str:
    return label.partition(".")[0] if "." in label else label


class TopicTrie(Generic[D]):
    def __init__(self) -> None:
        self.root: Node[D] = Node("")
        self._freed: list[Node[D]] | None = None  # While it is taken apart: where that has come to.

    def add(self, pattern: str, destination: D) -> bool:
        """False where this destination is bound with this pattern already."""
        words = words_of(pattern)
        node, at = self.root, 0
        while at < len(words):
            word = words[at]
            if word == "#":
                if node.hash is None:
                    node.hash = Node("#")
                node, at = node.hash, at + 1
            elif word == "*":
                if node.star is None:
                    node.star = Node("*")
                node, at = node.star, at + 1
            else:
                node, at = _descend(node, words, at)
        if holds(node.entry, destination):
            return False
        node.entry = joined(node.entry, destination)
        return True

    def free_some(self, most: int) -> int:
        """Take apart up to so many nodes of a trie that nobody uses any more. Returns how many."""
        done = 0
        stack = self._freed
        if stack is None:
            stack = self._freed = [self.root]
            self.root = Node("")
        while stack and done < most:
            node = stack[-1]
            children = node.children
            if isinstance(children, dict) and children:
                stack.append(children.popitem()[1])
            else:
                stack.pop()
                stack += [one for one in (node.star, node.hash, children) if isinstance(one, Node)]
                node.star = node.hash = node.children = None
            done += 1
        return done

    def remove(self, pattern: str, destination: D) -> bool:
        """False where there is no such binding. Nodes that no pattern needs any more go with it."""
        path = self._path(pattern)
        if path is None:
            return False
        entry = path[-1].entry
        if entry is None or not holds(entry, destination):
            return False
        path[-1].entry = parted(entry, destination)
        _prune(path)
        return True

    def _path(self, pattern: str) -> list[Node[D]] | None:
        """The nodes from the root to where exactly this pattern ends; None where no node stands there."""
        words = words_of(pattern)
        node, at = self.root, 0
        path = [node]
        while at < len(words):
            word = words[at]
            child = node.hash if word == "#" else node.star if word == "*" else node.child(word)
            if child is None:
                return None
            edge = child.label.split(".")
            if words[at : at + len(edge)] != edge:
                return None
            node, at = child, at + len(edge)
            path.append(node)
        return path

    def match(self, key: str) -> tuple[D, ...]:
        """The destinations whose pattern matches the key, each once."""
        entries = self._walk(key)
        if len(entries) > 1:
            return united(entries)
        if not entries:
            return ()
        entry = entries[0]
        return entry.all() if isinstance(entry, Many) else (entry,)

    def _walk(self, key: str) -> list[D | Many[D]]:
        """Every entry that the key leads to, each once. One long function: a call per state would double its cost."""
        words = words_of(key)
        end = len(words)
        found: list[D | Many[D]] = []
        reached: set[Node[D]] = set()  # `#` nodes, each at its lowest position; see the head of this module.
        states: list[tuple[Node[D], int]] = [(self.root, 0)]
        while states:
            node, at = states.pop()
            hash_node = node.hash
            if hash_node is not None and hash_node not in reached:
                reached.add(hash_node)
                if hash_node.children is None and hash_node.star is None and hash_node.hash is None:
                    # A closing `#`, by far the most frequent: it takes all that is left.
                    assert hash_node.entry is not None  # Else it would have been pruned.
                    found.append(hash_node.entry)
                else:
                    states.extend([(hash_node, position) for position in range(end, at - 1, -1)])
            if at == end:
                if node.entry is not None:
                    found.append(node.entry)
                continue
            star, children = node.star, node.children
            if star is not None:
                states.append((star, at + 1))
            if children is not None:
                word = words[at]
                child = children.get(word) if isinstance(children, dict) else children
                if child is None:
                    continue
                label = child.label
                if label == word:
                    states.append((child, at + 1))
                elif "." in label:
                    edge = label.split(".")
                    if words[at : at + len(edge)] == edge:
                        states.append((child, at + len(edge)))
        return found


def _descend(node: Node[D], words: list[str], at: int) -> tuple[Node[D], int]:
    """Follow or make the edge for the literal words from `at` on: the node it leads to, and the position after it."""
    run = at + 1
    while run < len(words) and words[run] != "#" and words[run] != "*":
        run += 1
    child = node.child(words[at])
    if child is None:
        child = Node(words[at] if run == at + 1 else ".".join(words[at:run]))
        node.attach(child)
        return child, run
    edge = child.label.split(".")
    common = 1
    while common < len(edge) and at + common < run and edge[common] == words[at + common]:
        common += 1
    if common < len(edge):
        # The new pattern ends or turns off within this edge: a node is put in where it does.
        # It takes the child's place before the child's label changes, by which the place is found.
        fork: Node[D] = Node(".".join(edge[:common]))
        node.attach(fork)
        child.label = ".".join(edge[common:])
        fork.attach(child)
        child = fork
    return child, at + common


def _prune(path: list[Node[D]]) -> None:
    """Take away, from the end of a path upwards, what leads to no entry, and undo a fork that has one way left."""
    while len(path) > 1:
        node = path.pop()
        if node.entry is not None or node.star is not None or node.hash is not None:
            return
        parent, children = path[-1], node.children
        if children is None:
            parent.detach(node)
            continue
        if not isinstance(children, dict) and node is not parent.star and node is not parent.hash:
            children.label = f"{node.label}.{children.label}"
            parent.attach(children)
        return
