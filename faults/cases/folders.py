"""Data folders that are old, damaged, another node's, or gone. A node refuses them or is healed by the others."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from faults.cases.case import Case
from faults.cases.run import Run
from faults.machines.leveret_node import CLUSTER_PORT, LeveretNode
from faults.machines.node import Node, NodeError

RECOVER_S = 60.0
EARLIER = "is of an earlier time"  # What a node says of its folder if its metadata lacks what it has promised.


def _load(run: Run) -> None:
    run.add_queues()
    run.add_registrars(3)


def _files(node: Node) -> list[Path]:
    """Returns the files that have something in them and are in use."""
    found = sorted(path for path in node.data.rglob("*") if path.is_file() and path.stat().st_size)
    return [path for path in found if path.name != "lock" and path.suffix != ".spare"]


def kind_of(file: Path, root: Path) -> str:
    """Returns the kind of a file: its name without numbers, and without the hashes in names of RabbitMQ's folders."""
    return re.sub(r"[0-9A-Z]{20,}|\d", "", str(file.relative_to(root)))


def start_or_recover(run: Run, node: Node) -> None:
    """Starts a node whose files are damaged: it heals, or refuses to start. Leveret then recovers as it says, or joins
    anew if its metadata lacks the end; RabbitMQ has no such command, so the node joins anew. Raises NodeError."""
    try:
        run.restart(node)
        run.note(f"  {node.name} has started")
        return
    except NodeError as error:
        refusal = str(error)
    node.kill()
    run.note(f"  {node.name} has refused to start: {refusal.strip().splitlines()[-1][:160]}")
    if not isinstance(node, LeveretNode) or EARLIER in refusal:
        _join_again(run, node)
        return
    other = next(one for one in run.cluster.nodes if one is not node)
    words = [sys.executable, "-m", "leveret", "recover", str(node.data), "--from", f"{other.host}:{CLUSTER_PORT}"]
    done = subprocess.run(
        ["ip", "netns", "exec", node.space, *words],
        env={**os.environ, **node.environment()},
        capture_output=True,
        text=True,
        timeout=RECOVER_S,
        check=False,
    )
    if done.returncode:
        raise NodeError(f"leveret recover: {done.stdout} {done.stderr}")
    run.restart(node)
    run.note(f"  {node.name} was recovered, and has started")


def _damaged(run: Run, how: str) -> None:
    node = run.victim()
    with run.fault(f"kill {node.name}, and {how} in one of its files"):
        node.kill()
        files = _files(node)
        kinds = sorted({kind_of(file, node.data) for file in files})
        kind = run.rng.choice(kinds)
        file = run.rng.choice([file for file in files if kind_of(file, node.data) == kind])
        data = bytearray(file.read_bytes())
        place = run.rng.randrange(len(data))
        if how == "a flipped bit":
            data[place] ^= 1 << run.rng.randrange(8)
        else:
            del data[place:]
        file.write_bytes(data)
        run.note(f"  {file.relative_to(node.data)}: {how} at {place}")
        start_or_recover(run, node)
    if run.rng.random() < 0.5:
        other = run.master()
        with run.fault(f"kill -9 {other.name}, a master, after that"):
            other.kill()
            run.wait(0.0, 2.0)
            run.restart(other)


def _flipped(run: Run) -> None:
    _damaged(run, "a flipped bit")


def _truncated(run: Run) -> None:
    _damaged(run, "the end missing")


def _old(run: Run) -> None:
    """The folder of a while ago is put back, as from a backup or a snapshot."""
    node = run.rng.choice(run.cluster.nodes[1:])  # The first one would found a cluster of its own with an empty folder.
    with run.fault(f"the folder of {node.name} of some seconds ago is put back"):
        kept = node.folder / "kept"
        shutil.rmtree(kept, ignore_errors=True)
        node.kill()
        shutil.copytree(node.data, kept)
        run.restart(node)
        run.cluster.await_in_sync(run.queues)
        run.wait(3.0, 10.0, short=2.0)
        node.kill()
        shutil.rmtree(node.data)
        shutil.copytree(kept, node.data)
        _start_or_rejoin(run, node)
    other = run.master()
    with run.fault(f"kill -9 {other.name}, a master, after that"):
        other.kill()
        run.wait(0.0, 2.0)
        run.restart(other)


def _start_or_rejoin(run: Run, node: Node) -> None:
    """Starts a node whose folder is old. While the leader is the same it knows better, and the node refuses."""
    try:
        run.restart(node)
        run.note(f"  {node.name} has started")
    except NodeError as error:
        if isinstance(node, LeveretNode) and EARLIER not in str(error):
            raise
        run.note(f"  {node.name} has refused to start with a folder of an earlier time")
        _join_again(run, node)


def _join_again(run: Run, node: Node) -> None:
    """Has the others forget a node, which then joins with an empty folder."""
    node.kill()
    other = run.cluster.asked()
    other.forget(node.name)
    node.founder = other.host  # Also if it was the first one of all.
    shutil.rmtree(node.data, ignore_errors=True)
    run.restart(node)
    run.cluster.await_whole()
    run.cluster.await_in_sync(run.queues)


def _foreign(run: Run) -> None:
    """A node is started with the folder of another one, while that one runs. It must not be served as the truth."""
    node, owner = run.rng.sample(run.cluster.nodes, 2)
    with run.fault(f"{node.name} is started with the folder of {owner.name}"):
        node.kill()
        own = node.folder / "own"
        shutil.rmtree(own, ignore_errors=True)
        owner.kill()
        shutil.move(node.data, own)
        shutil.copytree(owner.data, node.data)
        run.restart(owner)
        node.spawn()
        try:
            node.await_ready(10.0)
            run.note(f"  {node.name} has started with it")
            run.noticed.append(f"{node.name} has started with the folder of {owner.name}")
        except NodeError:
            said = [line for line in node.log().splitlines() if line.strip()][-1:]
            run.note(f"  {node.name} has refused: {' '.join(said)[:160]}")
        node.kill()
        shutil.rmtree(node.data)
        shutil.move(own, node.data)
        run.restart(node)


def _gone(run: Run) -> None:
    """The folder is lost: the node is forgotten, and joins again under its old name."""
    node = run.rng.choice(run.cluster.nodes[1:])
    with run.fault(f"the folder of {node.name} is gone, and it joins again"):
        node.kill()
        shutil.rmtree(node.data)
        try:
            node.spawn()
            node.await_ready(30.0)
            admitted = f"{node.name} was admitted as the one it had been, with nothing of what it knew"
            run.note(f"  {admitted}")
            if isinstance(node, LeveretNode):  # RabbitMQ does not promise otherwise.
                run.noticed.append(admitted)
        except NodeError:
            run.note(f"  {node.name} is not admitted under its old name")
        _join_again(run, node)


CASES = (
    Case("bit-flip", "a flipped bit in any kind of file of one node, then kills", _load, _flipped, 10),
    Case("truncated", "a file of one node lacks its end, then kills", _load, _truncated, 11),
    Case("old-folder", "a data folder of some time ago is put back, then kills", _load, _old, 11),
    Case("foreign-folder", "a node is started with another node's folder", _load, _foreign, 11, only_leveret=True),
    Case("lost-folder", "a folder is deleted, the node joins again by its name", _load, _gone, 12),
)
