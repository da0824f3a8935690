"""Deliberate bugs: pieces of source text that are replaced, with the number of nodes in whose simulation they show."""

from __future__ import annotations

import importlib
import inspect
from types import FunctionType
from typing import Any, Final, NamedTuple

import pytest


class Mutation(NamedTuple):
    name: str
    nodes: int
    module: str
    old: str
    new: str


def put(patch: pytest.MonkeyPatch, mutation: Mutation) -> None:
    """Run the changed module beside the real one, and put its functions in place of the real ones.

    A function that calls super(), or that a table refers to, cannot be replaced this way: a mutation must be in others.
    """
    module = importlib.import_module(f"leveret.{mutation.module}")
    source = inspect.getsource(module)
    assert source.count(mutation.old) == 1, f"{mutation.name}: its text is {source.count(mutation.old)} times there"
    changed: dict[str, Any] = {"__name__": module.__name__}
    exec(compile(source.replace(mutation.old, mutation.new), f"{module.__name__} (mutated)", "exec"), changed)
    for name, real in list(vars(module).items()):
        if getattr(real, "__module__", None) != module.__name__:
            continue
        if isinstance(real, type):
            functions = {key: value for key, value in vars(changed[name]).items() if _is_written(value)}
            changed[name] = real  # Two classes of one name would not recognize each other's objects.
            for key, value in functions.items():
                patch.setattr(real, key, value)
        elif isinstance(real, FunctionType):
            patch.setattr(module, name, changed[name])


def _is_written(value: object) -> bool:
    inner = value.fget if isinstance(value, property) else value.__func__ if isinstance(value, staticmethod) else value
    if not isinstance(inner, FunctionType):
        return False
    return inner.__code__.co_filename.endswith("(mutated)") and "__class__" not in inner.__code__.co_freevars


ALONE: Final = (
    Mutation(
        "confirms before the sync",
        1,
        "node.storage",
        "self.in_blocks[block.queue, block.number] = (queue, batch, awaiting)",
        "self.in_blocks[block.queue, block.number] = (queue, batch, [])\n"
        "                [pending.on_safe() for pending in awaiting]",
    ),
    Mutation("the log is not synced", 1, "log.jobs", "        disk.sync(path)\n        self.syncing = False", "        pass"),
    Mutation(
        "acknowledgements are not written",
        1,
        "broker.queue",
        "                settled.append((first, last))",
        "                pass",
    ),
    Mutation("swaps what is published", 1, "broker.queue", "batch.contents += contents", "batch.contents += contents[::-1]"),
    Mutation(
        "does not say that it was delivered before",
        1,
        "broker.queue",
        "            batch.mark_redelivered(lo, hi)\n",
        "            pass\n",
    ),
    Mutation("one more than the prefetch count", 1, "amqp.consumer", "prefetch - self.unacked", "prefetch + 1 - self.unacked"),
    Mutation(
        "does not take back what a channel had",
        1,
        "amqp.channel",
        "        self._requeue(taken)\n\n    # -- Methods",
        "\n    # -- Methods",
    ),
    Mutation(
        "puts what is given back at the end",
        1,
        "broker.queue",
        "while at < len(ready) and ready[at].first < first:",
        "while at < len(ready):",
    ),
    Mutation("basic.get leaves the message there", 1, "broker.queue", "        head.lo += 1\n", "        head.lo += 0\n"),
    Mutation(
        "confirms twice",
        1,
        "broker.confirms",
        "            frames.append((last, last > first, refused))",
        "            frames += [(last, last > first, refused)] * 2",
    ),
    Mutation(
        "confirms one too many",
        1,
        "broker.confirms",
        "            frames.append((last, last > first, refused))",
        "            frames.append((last + 1, True, refused))",
    ),
    Mutation(
        "metadata is not synced",
        1,
        "node.consensus_log",
        "        disk.sync(self.path)\n",
        "        pass\n",
    ),
    Mutation(
        "a new consumer waits until something else happens",
        1,
        "broker.queue",
        "        self.crowded_at = CROWDED_AT\n        self.host.dirty[self] = None",
        "        self.crowded_at = CROWDED_AT",
    ),
    Mutation("does not read on", 1, "node.client", "                self.transport.resume_reading()", "                pass"),
    Mutation(
        "does not go on when what is held may",
        1,
        "amqp.connection",
        "        if not self.held and self.on_released is not None:\n            self.on_released()",
        "        pass",
    ),
    Mutation(
        "settled messages are found again at the start",
        1,
        "log.recovery",
        "                queue.live.remove(low, high)\n                queue.redelivered.remove(low, high)\n        if entry",
        "                queue.redelivered.remove(low, high)\n        if entry",
    ),
    Mutation(
        "what was read back is put behind the rest",
        1,
        "broker.queue",
        "            self.ready.insert(at, Span(batch, 0, batch.left))",
        "            self.ready.append(Span(batch, 0, batch.left))",
    ),
    Mutation(
        "an unfinished write is not written again",
        1,
        "log.recovery",
        "            self._write_again(path, last.synced, last.index.length)",
        "            pass",
    ),
    Mutation(
        "a full disk is forgotten",
        1,
        "node.storage",
        "            self.loop.call_later(RETRY_S, self._retry)",
        "            pass",
    ),
    Mutation(
        "a failed sync counts as done",
        1,
        "log.jobs",
        "        self.syncing = True\n        disk.sync(path)\n",
        "        try:\n            disk.sync(path)\n        except OSError:\n            pass\n",
    ),
    Mutation("a failed sync is tried again", 1, "log.log", "        if not full or job.syncing:", "        if False:"),
)
