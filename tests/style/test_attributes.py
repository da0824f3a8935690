"""Nobody but a queue, a mirror or a connection changes its attributes: each has methods for what may happen to it.

An object is known here by the name under which the code has it, such as `queue` or `self.connection`. Hot paths may be
exceptions; each says why.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
OWNED = frozenset({"queue", "mirror", "connection", "channel", "detached", "front", "successor"})
# By module and attribute: why it is written from outside.
EXCEPTIONS = {("leveret/data/client.py", "connection.timeout"): "it is a connection of http.client"}


def targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign | ast.Delete):
        found = list(node.targets)
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        found = [node.target]
    else:
        return []
    return [part for one in found for part in (one.elts if isinstance(one, ast.Tuple | ast.List) else [one])]


def written(source: str) -> Iterator[tuple[int, str]]:
    """Returns the lines that change an attribute of a queue, a mirror or a connection, and which."""
    for node in ast.walk(ast.parse(source)):
        for target in targets(node):
            if isinstance(target, ast.Attribute):
                name = ast.unparse(target.value).rpartition(".")[2]
                if name in OWNED:
                    yield target.lineno, f"{name}.{target.attr}"


def test_queues_mirrors_and_connections_change_themselves() -> None:
    found, used = [], set()
    for path in sorted((ROOT / "leveret").rglob("*.py")):
        module = str(path.relative_to(ROOT))
        for line, what in written(path.read_text(encoding="utf-8")):
            used.add((module, what))
            if (module, what) not in EXCEPTIONS:
                found.append(f"{module}, line {line}: {what} is changed from outside")
    assert found == []
    assert used >= EXCEPTIONS.keys()


def test_the_check_notices() -> None:
    assert list(written("def f(self, queue):\n    queue.parked, x = [], 1\n    self.connection.user += 'a'")) == [
        (2, "queue.parked"), (3, "connection.user"),
    ]  # fmt: skip
    assert not list(written("def f(self, queue):\n    self.queue = queue\n    row = queue.row"))
