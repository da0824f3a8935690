"""The audit of real nodes, one of which was given an old copy of its data."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from leveret.data.client import DataClient, QueueInfo, Unreachable
from pyspark_leveret.jobs import audit as job
from pyspark_leveret.jobs.analysis import journal_facts
from pyspark_leveret.jobs.audit import Rules
from tests.support.members import Cluster, Member
from tests.support.servers import until
from tests.system.mirrors.audit import events, read

pytestmark = [pytest.mark.long, pytest.mark.spark]

COUNT = 500


def server(node: Member) -> str:
    return f"http://127.0.0.1:{node.management_port}"


def publish(node: Member, queue: str, ledger: Path) -> None:
    """Has so many messages confirmed to a publisher of its own, which writes them down."""
    words = ("-u", queue, "-p", "-y", "0", "-C", str(COUNT), "-c", "50", "-f", "persistent", "-s", "100", "--quiet")
    uri = f"amqp://guest:guest@127.0.0.1:{node.port}"
    subprocess.run(
        [sys.executable, "-m", "leveret", "perf", *words, "--uri", uri, "--ledger", str(ledger)], check=True, timeout=60
    )


def look(asked: Member, queue: str) -> QueueInfo:
    with DataClient(server(asked), patience_s=20.0) as client:
        [info] = client.queues([queue])
        return info


def is_told(node: Member, queue: str, kind: str, count: int) -> bool:
    """Whether a journal, which may still be missing, tells this of so many messages."""
    listed = node.control("list_queues", vhost="/", columns=["name"], after=None)["rows"]
    if [f"leveret.journal.{node.name}"] not in [row[:1] for row in listed]:
        return False
    told = [event for event in events(read(node, node), queue) if event[0] == kind]
    return count == sum(int(event[5]) for event in told)


def test_what_a_disk_that_was_put_back_has_lost(spark: Any, trio: Cluster, name: str, tmp_path: Path) -> None:
    home, edge, _ = trio
    definition = {"journal": "full"}
    home.control(
        "set_policy", vhost="/", name=name, pattern=f"^{name}$", definition=definition, priority=1,
        apply_to="queues", operator=False,
    )  # fmt: skip
    home.channel().queue_declare(name, durable=True)
    publish(edge, name, tmp_path / "ledger")
    until(lambda: is_told(home, name, "published", COUNT), "the journal is written")
    home.kill()
    shutil.copytree(home.data, tmp_path / "copy")
    trio.start()
    until(lambda: look(edge, name).messages == COUNT, "the queue is there again")
    publish(edge, name, tmp_path / "ledger")
    until(lambda: is_told(edge, name, "safe", 2 * COUNT), "the node of the clients has told what is safe")
    home.kill()
    shutil.rmtree(home.data)
    shutil.copytree(tmp_path / "copy", home.data)

    # Of a node that is down nothing is known, and the rest is.
    with DataClient([server(home), server(edge)], patience_s=10.0) as client:
        [journal] = client.queues(pattern=f"leveret.journal.{home.name}")
        assert journal.is_down and journal.master == home.name
        with pytest.raises(Unreachable, match=f"node {home.name} is not running") as caught:
            DataClient([server(home), server(edge)], patience_s=0.5).queues([name])
        assert caught.value.was_answered
    found = journal_facts.find_journals(journal_facts.access_from({"servers": f"{server(home)},{server(edge)}"}))
    assert found.silent == (home.name,) and f"leveret.journal.{edge.name}" in found.names
    trio.leader().kill()  # It would not believe that a node has less of the metadata than it had.
    trio.start()
    until(lambda: look(edge, name).messages == COUNT, "the queue is as it was")
    options = {"servers": ",".join(map(server, (home, edge)))}
    verdict = job.audit(spark, options, Rules(queues=name)).verdict
    assert (verdict.code, verdict.lost, verdict.unmatched) == (job.CANNOT_SAY, 0, COUNT)
    assert "was a disk put back" in verdict.sentence
    rules = Rules(queues=name, published=str(tmp_path / "ledger" / "published"))
    verdict = job.audit(spark, options, rules).verdict
    assert (verdict.code, verdict.lost, verdict.unknown) == (job.LOST, COUNT, 0)
    assert (verdict.confirmed, verdict.present) == (2 * COUNT, COUNT)
