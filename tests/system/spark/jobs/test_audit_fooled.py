"""Attempts to fool the audit: disks that were put back, clocks that jump, journals and ledgers that lack something.

Each attempt is a queue of its own in one of a few audits, since an audit costs seconds, however small.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_leveret.connect import LeveretError
from pyspark_leveret.jobs.audit import Audit, Rules
from tests.system.spark.jobs.stories import HER, HIM, ONE, START_MS, TWO, WHO, Story, came, event

pytestmark = [pytest.mark.long, pytest.mark.spark]

OTHER = "10.0.0.8:50000 -> 10.0.0.2:5672 (1)"
NODE = "node 5f3a"  # As a producer.


def about(queue: str, id: int) -> dict[str, Any]:
    return {"queue": queue, "id": id}


def routed(queue: str, id: int, who: str, first: int, last: int, said: int, **more: Any) -> list[Any]:
    """A node sent what its client counts from `said` on as these numbers of its own."""
    own = [said, said + last - first]
    detail = {"id": id, "to": ONE, "token": 1, "place": 0, "said": own, "producer": NODE, "numbers": [first, last]}
    return ["routed", "/", queue, 0, 0, last - first + 1, who, {**detail, **more}]


def safe(queue: str, id: int, first: int, last: int, producer: str = NODE) -> list[Any]:
    detail = {"id": id, "producer": producer, "numbers": [first, last]}
    return ["safe", "/", queue, 0, 0, last - first + 1, "", detail]


def given(queue: str, id: int, first: int, last: int, number: int, **more: Any) -> list[Any]:
    """The master gave these numbers to what the node sent as `number` and so on."""
    numbers = [number, number + last - first]
    detail = {"said": [1, 1], "producer": NODE, "numbers": numbers, **about(queue, id), **more}
    return event("published", first, last, detail.pop("by", TWO), **detail)


def old_routed(queue: str, id: int, who: str, token: int, count: int) -> list[Any]:
    detail = {"id": id, "to": ONE, "token": token, "place": 0, "said": [1, count]}
    return ["routed", "/", queue, 0, 0, count, who, detail]


# For a few rows, most of the time goes into code that Spark makes, and into jobs that it plans one by one.
PLAIN = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}


@pytest.fixture(scope="module")
def uncompiled(spark: Any) -> Iterator[Any]:
    before = {name: spark.conf.get(name) for name in PLAIN}
    for name, value in PLAIN.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value)


def rolled_back(story: Story, queue: str, id: int, first: str = HIM, second: str = OTHER) -> None:
    """500 came from each of two clients at another node; what the master knows ends with the first 500."""
    story.tell(TWO, routed(queue, id, first, 1, 500, 1), safe(queue, id, 1, 500))
    story.tell(ONE, event("started", 1, 0, **about(queue, id)), given(queue, id, 1, 500, 1))
    story.tell(TWO, routed(queue, id, second, 501, 1_000, 1, token=1), safe(queue, id, 501, 1_000))
    story.tell(ONE, event("started", 1, 500, epoch=2, **about(queue, id))).holds(queue, 1, 500, 501, id=id)


class Found:
    def __init__(self, audit: Audit) -> None:
        self.audit = audit
        self.findings = audit.findings.collect()
        self.queues = {row.queue: row for row in audit.queues.collect()}
        self.channels = {(row.queue, row.channel): row.published for row in audit.channels.collect()}

    def bad(self, queue: str) -> tuple[int, int]:
        """How many are lost, and how many unknown."""
        row = self.queues[queue]
        return row.lost, row.unknown


@pytest.fixture(scope="module")
def journals_alone(uncompiled: Any) -> Found:
    story = Story()
    rolled_back(story, "rolled-back", 21)
    # The link broke, and the node sent 11 to 20 again. The master had 11 to 15 of them.
    names = ("again", 22)
    story.tell(ONE, event("started", 1, 0, **about(*names)), given(*names, 1, 10, 1), given(*names, 11, 15, 11))
    story.tell(TWO, routed(*names, HIM, 1, 20, 1), safe(*names, 1, 10), routed(*names, HIM, 11, 20, 11, token=1))
    story.tell(ONE, given(*names, 16, 20, 16)).tell(TWO, safe(*names, 11, 20)).holds("again", 1, 20, 21, id=22)
    # Never arrived, and nobody was told that it had: the node was stopped with it.
    names = ("under-way", 23)
    story.tell(TWO, routed(*names, HIM, 1, 30, 1), safe(*names, 1, 20))
    story.tell(ONE, event("started", 1, 0, **about(*names)), given(*names, 1, 20, 1)).holds(names[0], 1, 20, 21, id=23)
    # The node was renamed, which is told by no event, and begins another journal.
    names = ("renamed", 24)
    story.tell("old@b", routed(*names, HIM, 1, 10, 1), safe(*names, 1, 10))
    story.tell(ONE, event("started", 1, 0, **about(*names)), given(*names, 1, 10, 1, by="old@b"))
    story.tell("new@b", routed(*names, OTHER, 1, 10, 1, producer="node 2"), safe(*names, 1, 10, "node 2"))
    story.tell(ONE, given(*names, 11, 20, 1, by="new@b", producer="node 2")).holds("renamed", 1, 20, 21, id=24)
    # The clock of the client's node is a day ahead.
    names, now_ms = ("jumped", 25), story.ms
    story.tell(ONE, event("started", 1, 0, **about(*names)), given(*names, 1, 10, 1))
    story.ms += 86_400_000
    story.tell("ahead@c", routed(*names, HIM, 1, 10, 1), safe(*names, 1, 10))
    story.ms = now_ms
    story.holds("jumped", 1, 10, 11, id=25)
    # A sample, and a deleted queue.
    names = ("sampled", 26)
    story.tell(TWO, routed(*names, HIM, 1, 128, 1, sampled=True), safe(*names, 1, 128))
    story.tell(ONE, event("started", 1, 0, **about(*names)), given(*names, 1, 64, 1, sampled=True))
    story.holds("sampled", 1, 128, 129, id=26)
    names = ("deleted", 27)
    story.tell(ONE, event("started", 1, 0, **about(*names)), event("stopped", 1, 0, reason="deleted", **about(*names)))
    story.tell(TWO, routed(*names, HIM, 1, 10, 1), safe(*names, 1, 10))
    # Journals of an earlier version: one bundle that only one event fits, and the fault of two links.
    names = ("old", 28)
    story.tell(TWO, old_routed(*names, HIM, 9, 10))
    told = event("published", 1, 10, TWO, said=[9, 9], **about(*names))
    story.tell(ONE, event("started", 1, 0, **about(*names)), told)
    story.holds("old", 1, 10, 11, id=28)
    names = ("old-rolled-back", 29)
    story.tell(TWO, old_routed(*names, HIM, 1, 10))
    told = event("published", 1, 10, TWO, said=[1, 1], **about(*names))
    story.tell(ONE, event("started", 1, 0, **about(*names)), told)
    story.tell(TWO, old_routed(*names, OTHER, 1, 10)).holds("old-rolled-back", 1, 10, 11, id=29)
    # The master's disk was put back. The mirror had more, and followed it all the same; numbers were given again.
    names = ("mirrored", 30)
    story.tell(ONE, event("started", 1, 0, **about(*names)), *came(1, 50, **about(*names)))
    story.tell(TWO, event("replicated", 1, 100, ONE, what="published", **about(*names)))
    story.tell(ONE, event("promoted", 1, 50, ONE, epoch=2, **about(*names)), *came(51, 60, 2, 1, HER, **about(*names)))
    story.tell(ONE, event("acked", 1, 60, epoch=2, **about(*names))).holds("mirrored", 1, 0, 61, id=30)
    return Found(story.examine(uncompiled))


def test_a_disk_that_was_put_back_is_no_clean_verdict(journals_alone: Found) -> None:
    assert journals_alone.bad("rolled-back") == (0, 500)
    verdict = journals_alone.audit.verdict
    assert verdict.code == 2 and verdict.unmatched == 500 + 20
    assert verdict.sentence.startswith("CANNOT SAY") and "was a disk put back" in verdict.sentence
    assert journals_alone.channels["rolled-back", HIM] == 500
    assert ("rolled-back", OTHER) not in journals_alone.channels  # Nobody's messages are laid on those of another.
    row = journals_alone.queues["rolled-back"]
    assert (row.confirmed, row.present) == (1_000, 500)


@pytest.mark.parametrize("queue", ["again", "under-way", "renamed", "jumped", "sampled", "old"])
def test_what_only_looks_like_a_loss(journals_alone: Found, queue: str) -> None:
    assert journals_alone.bad(queue) == (0, 0)


def test_a_deleted_queue_took_its_messages_along(journals_alone: Found) -> None:
    assert "deleted" not in journals_alone.queues


def test_a_node_keeps_its_clients_when_it_is_renamed(journals_alone: Found) -> None:
    assert journals_alone.channels["renamed", HIM] == journals_alone.channels["renamed", OTHER] == 10


def test_journals_of_an_earlier_version_prove_less(journals_alone: Found) -> None:
    assert journals_alone.channels["old", HIM] == 10
    assert journals_alone.bad("old-rolled-back") == (0, 20)  # Either of the two bundles may be the one that came.


def test_what_only_a_mirror_has_seen(journals_alone: Found) -> None:
    assert journals_alone.bad("mirrored") == (0, 50)
    assert journals_alone.queues["mirrored"].acked == 60


# -- With ledgers --------------------------------------------------------------------------------------------------


def noted(folder: Path, queue: str, publisher: str, channel: str, first: int, last: int, **more: Any) -> None:
    line = {"queue": queue, "publisher": publisher, "channel": channel, "number": first, "last": last}
    with (folder / "published.jsonl").open("a") as file:
        file.write(json.dumps({**line, "confirmed_at": START_MS + 100_000, **more}) + "\n")


@pytest.fixture(scope="module")
def with_a_ledger(uncompiled: Any, tmp_path_factory: pytest.TempPathFactory) -> Found:
    story, folder = Story(), tmp_path_factory.mktemp("ledger")
    rolled_back(story, "rolled-back", 21)
    noted(folder, "rolled-back", "p1", HIM, 1, 500)
    noted(folder, "rolled-back", "p2", OTHER, 1, 500)
    # The same port again: both channels have one name, and one of the publishers' messages are gone.
    story.tell(ONE, event("started", 1, 0, **about("namesakes", 22)), *came(1, 100, who=WHO, **about("namesakes", 22)))
    story.holds("namesakes", 1, 100, 101, id=22)
    noted(folder, "namesakes", "p3", WHO, 1, 100)
    noted(folder, "namesakes", "p4", WHO, 1, 100)
    # The node of the client has it in its spool, and the client was told.
    names = ("spooled", 23)
    story.tell(TWO, routed(*names, HER, 1, 10, 1, token=0))
    story.tell(ONE, event("started", 1, 0, **about(*names)), *came(1, 1, who=HIM, **about(*names)))
    story.holds("spooled", 1, 1, 2, id=23)
    noted(folder, "spooled", "p5", HER, 1, 10)
    # Of this queue nobody keeps a journal; of that one, only since it had 10 messages.
    noted(folder, "unheard-of", "p6", HER, 1, 10)
    story.tell(ONE, event("started", 1, 10, **about("late", 24))).holds("late", 1, 10, 11, id=24)
    noted(folder, "late", "p7", HER, 11, 20)
    # Transient messages went with their node; a sample lacks what it is to lack.
    names = ("transient", 25)
    told = event("published", 1, 10, HER, said=[21, 30], transient=True, **about(*names))
    story.tell(ONE, event("started", 1, 0, **about(*names)), told).holds("transient", 1, 0, 11, id=25)
    noted(folder, "transient", "p8", HER, 21, 30)
    names = ("sampled", 26)
    told = event("published", 1, 64, HER, said=[31, 94], sampled=True, **about(*names))
    story.tell(ONE, event("started", 1, 0, **about(*names)), told).holds("sampled", 1, 128, 129, id=26)
    noted(folder, "sampled", "p9", HER, 31, 158)
    with (folder / "published.jsonl").open("a") as file:  # Ids, and no consumer who wrote down any.
        file.write(json.dumps({"queue": "ids", "message_id": "a", "confirmed_at": START_MS}) + "\n")
    (folder / "consumed.jsonl").write_text("")
    rules = Rules(published=str(folder / "published.jsonl"), consumed=str(folder / "consumed.jsonl"))
    return Found(story.examine(uncompiled, rules, "cluster"))


def test_the_ledger_decides(with_a_ledger: Found) -> None:
    assert with_a_ledger.bad("rolled-back") == (500, 0)
    lost = [row for row in with_a_ledger.findings if (row.queue, row.kind) == ("rolled-back", "lost")]
    assert [(row.told_by, row["first"], row["last"]) for row in lost] == [("ledger", 1, 500)]
    assert with_a_ledger.audit.verdict.code == 1 and with_a_ledger.audit.verdict.unmatched == 0


def test_two_publishers_on_channels_of_one_name(with_a_ledger: Found) -> None:
    assert with_a_ledger.bad("namesakes") == (100, 0)


@pytest.mark.parametrize(("queue", "unknown"), [("spooled", 10), ("unheard-of", 10), ("late", 10), ("ids", 1)])
def test_what_journals_need_not_know(with_a_ledger: Found, queue: str, unknown: int) -> None:
    assert with_a_ledger.bad(queue) == (0, unknown)


def test_what_was_never_meant_to_last(with_a_ledger: Found) -> None:
    assert with_a_ledger.bad("transient") == with_a_ledger.bad("sampled") == (0, 0)
    assert with_a_ledger.queues["transient"].transient == 10
    assert "10 transient and gone with their node" in with_a_ledger.audit.verdict.sentence


def test_a_ledger_of_another_cluster(uncompiled: Any, tmp_path: Path) -> None:
    story = Story().tell(ONE, event("started", 1, 0), *came(1, 10), event("acked", 1, 10)).holds("q", 1, 0, 11)
    noted(tmp_path, "q", "p", OTHER, 1, 10)
    rules = Rules(published=str(tmp_path / "published.jsonl"))
    found = Found(story.examine(uncompiled, rules, "here"))
    assert found.bad("q") == (0, 10) and found.audit.verdict.code == 2
    assert "is it of another cluster?" in found.audit.verdict.sentence
    noted(tmp_path, "q", "p", OTHER, 11, 20, cluster="elsewhere")
    with pytest.raises(LeveretError, match="is the ledger of cluster 'elsewhere', and the journals are of 'here'"):
        story.examine(uncompiled, rules, "here")


def test_journals_that_were_cut_and_clocks_that_were_set_back(uncompiled: Any, tmp_path: Path) -> None:
    """What a cut journal told before is not lost, however the clocks stand, nor is what a ledger has of it."""
    story = Story()
    story.offsets[TWO] = 50
    story.tell(ONE, event("started", 1, 0), *came(1, 10))
    noted(tmp_path, "q", "p", WHO, 1, 10)
    noted(tmp_path, "q", "gone", HER, 1, 10, confirmed_at=START_MS - 60_000)
    story.tell(TWO, event("started", 1, 0, queue="r", id=8))
    story.ms -= 7_200_000
    story.tell(TWO, *came(1, 1, queue="r", id=8)).holds("q", 1, 0, 11)
    found = Found(story.examine(uncompiled, Rules(queues="q", published=str(tmp_path / "published.jsonl"))))
    assert found.bad("q") == (0, 20) and found.audit.verdict.jumped == (TWO,)
    assert "clocks were set back (two@b)" in found.audit.verdict.sentence
