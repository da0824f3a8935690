"""The audit, on journals as nodes would have written them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pyspark_leveret.jobs import audit as job
from pyspark_leveret.jobs import report
from pyspark_leveret.jobs.analysis import alarms
from pyspark_leveret.jobs.audit import Audit, Rules, Verdict
from tests.system.spark.jobs.stories import HER, HIM, ONE, START_MS, TWO, WHO, Story, came, event


class Found(NamedTuple):
    audit: Audit
    findings: list[Any]
    queues: dict[str, Any]

    def ranges(self, queue: str, kind: str) -> list[tuple[int, int]]:
        return sorted((row["first"], row["last"]) for row in self.findings if (row.queue, row.kind) == (queue, kind))


def every_way_to_go(story: Story) -> None:
    """Of 100 messages, some have left in each way there is, ten wait, and 71 to 95 are nowhere."""
    story.tell(ONE, event("started", 1, 0), *came(1, 100), event("started", 1, 0, queue="r", id=8))
    story.tell(ONE, event("published", 101, 110, WHO, said=[101, 110], transient=True))
    story.tell(ONE, event("delivered", 1, 60, "c"), event("acked", 1, 40), event("requeued", 41, 60))
    story.tell(ONE, event("delivered", 41, 50, "c"), event("acked", 41, 50), event("acked", 45, 50))
    story.tell(ONE, event("rejected", 51, 52, reason="rejected"), event("expired", 53, 54), event("dropped", 55, 56))
    story.tell(ONE, event("dead-lettered", 57, 58), *came(1, 5, queue="r", id=8))
    turns = {"a": 2, "b": 1, "": 3}  # Of both ranges together.
    story.tell(ONE, event("delivered", 61, 64, to=turns), event("delivered", 66, 67, to=turns))
    story.tell(TWO, event("replicated", 59, 60, ONE, what="settled"), event("replicated", 61, 80, ONE, what="filled"))
    story.tell(ONE, event("stopped", 1, 5, queue="r", id=8, reason="deleted"))
    story.holds("q", 61, 70, 96)


def a_failover(story: Story) -> None:
    """By force: of the first master's 91 to 100, five were confirmed. 96 to 100 were not, and had their numbers
    again."""
    about: dict[str, Any] = {"queue": "f", "id": 11}
    story.tell(ONE, ["started", "", "", 0, 0, 0, "", {"version": 1}], event("started", 1, 0, **about))
    story.tell(ONE, *came(1, 95, **about), event("published", 96, 100, WHO, said=[96, 100], **about))
    story.tell(ONE, event("acked", 1, 80, **about), event("delivered", 81, 84, "c", **about))
    story.tell(TWO, ["partition", "", "", 0, 0, 0, ONE, {"state": "lost"}])
    later: dict[str, Any] = {**about, "epoch": 2}
    story.tell(TWO, event("promoted", 1, 90, ONE, forced=True, **later), event("started", 1, 90, **later))
    story.tell(TWO, *came(91, 120, said=1, **later), event("delivered", 87, 120, "d", **later))
    story.tell(TWO, event("delivered", 83, 86, "d", **later), event("acked", 81, 120, **later))
    story.tell(ONE, ["started", "", "", 0, 0, 0, "", {"version": 1}])
    story.holds("f", 1, 0, 121, id=11)


def a_move(story: Story) -> None:
    """Numbers begin anew. 10 was not taken along; the fifth at the new place is not there."""
    about: dict[str, Any] = {"queue": "m", "id": 12}
    story.tell(ONE, event("started", 1, 0, **about), *came(1, 10, **about), event("acked", 1, 4, **about))
    story.tell(TWO, event("started", 1, 0, **about), event("published", 1, 5, ONE, said=[1, 5], **about))
    story.tell(ONE, event("delivered", 5, 9, f"moving to {TWO}", **about))
    story.tell(ONE, event("stopped", 1, 10, reason="elsewhere", **about))
    story.tell(TWO, event("acked", 1, 3, **about)).holds("m", 4, 4, 6, id=12)


def a_client_elsewhere(story: Story, folder: Path) -> None:
    """Its own numbers 1 to 20 are 6 to 25 of the queue. It was told of 1 to 30, and of 50; no journal knows of the last
    ones. Consumers noted 16 to 24, 20 twice."""
    about: dict[str, Any] = {"queue": "c", "id": 13}
    story.tell(TWO, ["routed", "/", "c", 0, 0, 20, HIM, {"id": 13, "to": ONE, "token": 9, "place": 5, "said": [1, 20]}])
    story.tell(ONE, event("started", 1, 0, **about), event("published", 1, 25, TWO, said=[9, 9], **about))
    story.tell(ONE, event("acked", 1, 10, **about), event("promoted", 1, 20, TWO, **{**about, "epoch": 2}))
    story.holds("c", 11, 15, 16, id=13)
    entry = {"queue": "c", "publisher": "p", "confirmed_at": START_MS, "channel": HIM}
    noted = {"queue": "c", "publisher": "p", "received_at": START_MS + 5}
    ranges = {"published": [(1, 30), (50, 50)], "consumed": [(16, 19), (20, 20), (20, 24)]}
    for name, template in (("published", entry), ("consumed", noted)):
        lines = [json.dumps({**template, "number": first, "last": last}) for first, last in ranges[name]]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def a_crash(story: Story, folder: Path) -> None:
    """Killed before it told that 51 to 80 came and 21 to 40 were settled; its next start tells so. Then 41 to 70 leave,
    and 79 and 80 are nowhere. The publisher was told of all."""
    about: dict[str, Any] = {"queue": "k", "id": 14}
    story.tell(ONE, event("started", 1, 0, **about), *came(1, 50, who=HER, **about), event("acked", 1, 20, **about))
    later: dict[str, Any] = {**about, "epoch": 2}
    story.tell(
        ONE,
        event("started", 1, 80, **later),
        event("recovered", 1, 80, HER, what="published", said=[1, 80], **later),
        event("recovered", 1, 40, what="settled", **later),
    )
    story.tell(ONE, event("acked", 41, 70, ms=START_MS + 90_000, **later)).holds("k", 71, 78, 81, id=14)
    line = {"queue": "k", "publisher": "k", "confirmed_at": START_MS, "channel": HER, "number": 1, "last": 80}
    with (folder / "published.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def ledgers_with_ids(folder: Path) -> None:
    """Of four messages that were confirmed one was received twice, and one never."""
    told = {"published": ["a", "b", "c", "d"], "consumed": ["a", "b", "b", "d"]}
    for name, ids in told.items():
        at = "confirmed_at" if name == "published" else "received_at"
        lines = [{"queue": "ids", "message_id": f"{id}", at: START_MS + place} for place, id in enumerate(ids)]
        with (folder / f"{name}.jsonl").open("a") as file:
            file.write("\n".join(map(json.dumps, lines)) + "\n")


@pytest.fixture(scope="module")
def found(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """One audit of everything: each costs some seconds, however small."""
    story, folder = Story(), tmp_path_factory.mktemp("ledgers")
    every_way_to_go(story)
    a_failover(story)
    a_move(story)
    a_client_elsewhere(story, folder)
    a_crash(story, folder)
    ledgers_with_ids(folder)
    published, consumed = (str(folder / f"{name}.jsonl") for name in ("published", "consumed"))
    done = story.examine(spark, Rules(late_s=3, published=published, consumed=consumed))
    return Found(done, done.findings.collect(), {row.queue: row for row in done.queues.collect()})


@pytest.mark.long
@pytest.mark.spark
def test_every_way_to_go_is_accounted_for_and_what_is_nowhere_is_lost(found: Found) -> None:
    row = found.queues["q"]
    assert (row.confirmed, row.lost, row.new) == (100, 25, 5)  # 71 to 95; from 96 on they came too late.
    assert (row.acked, row.left, row.present) == (52, 8, 10)
    assert found.ranges("q", "lost") == [(71, 95)]
    assert found.ranges("q", "redelivered") == [(41, 50)] and found.ranges("q", "duplicated") == [(45, 50)]
    assert found.ranges("q", "reordered") == [] and found.ranges("r", "deleted") == [(1, 5)]
    assert row.late == 10  # Those that still wait: all this was told long ago.
    [lost] = [row for row in found.findings if row.queue == "q" and row.kind == "lost"]
    assert lost.channel == WHO
    channels = {row.channel: row for row in found.audit.channels.filter("queue = 'q'").collect()}
    assert (channels[WHO].published, channels[WHO].lost, channels["c"].delivered) == (110, 25, 70)
    assert (channels["a"].delivered, channels["b"].delivered, "" in channels) == (2, 1, False)


@pytest.mark.long
@pytest.mark.spark
def test_numbers_that_were_given_again_after_a_failover(found: Found) -> None:
    row = found.queues["f"]
    assert found.ranges("f", "lost") == [(91, 95)]
    assert (row.lost, row.withdrawn, row.confirmed, row.acked) == (5, 5, 125, 120)
    [lost] = [row for row in found.findings if row.queue == "f" and row.kind == "lost"]
    assert "two@b" in lost.fault or "one@a" in lost.fault
    texts = [one.text for one in found.audit.faults]
    assert "two@b lost the link to one@a" in texts
    assert "two@b took over 1 queue from one@a, by force: other copies may have had more" in texts
    assert "one@a is there again, and had not stopped in order: it was killed" in texts
    assert found.ranges("f", "late") == [(81, 90)]  # Neighbours are one finding.
    assert found.ranges("f", "redelivered") == [(83, 84)] and found.ranges("f", "reordered") == [(85, 86)]


@pytest.mark.long
@pytest.mark.spark
def test_a_queue_that_moved_begins_to_count_anew(found: Found) -> None:
    assert found.ranges("m", "lost") == [(5, 5), (10, 10)]
    assert found.queues["m"].confirmed == 15


@pytest.mark.long
@pytest.mark.spark
def test_ledgers_of_clients_are_laid_upon_the_journals(found: Found) -> None:
    by = {(row.told_by, row["first"], row["last"]) for row in found.findings if (row.queue, row.kind) == ("c", "lost")}
    assert by == {("ledger", 25, 30), ("ledger", 50, 50)}
    assert found.ranges("c", "duplicated") == [(20, 20)]
    assert found.audit.verdict.lost == 25 + 5 + 2 + 7 + 2 + 1 and found.audit.verdict.code == 1


@pytest.mark.long
@pytest.mark.spark
def test_ledgers_with_ids_are_laid_upon_each_other(found: Found) -> None:
    told = {row.kind: (row.told_by, row["count"], row.at_ms) for row in found.findings if row.queue == "ids"}
    assert told == {"lost": ("ledger", 1, START_MS + 2), "duplicated": ("ledger", 1, START_MS + 2)}


@pytest.mark.long
@pytest.mark.spark
def test_what_a_killed_node_had_no_time_to_tell_is_told_after_its_start(found: Found) -> None:
    row = found.queues["k"]
    assert found.ranges("k", "lost") == [(79, 80)]
    assert (row.confirmed, row.acked, row.present) == (80, 70, 8)
    [lost] = [row for row in found.findings if row.queue == "k" and row.kind == "lost"]
    assert lost.channel == HER and lost.told_by == "journal"
    [channel] = found.audit.channels.filter("queue = 'k'").collect()
    assert (channel.published, channel.lost) == (80, 2)  # What was told twice is one message.
    assert found.ranges("k", "duplicated") == []


@pytest.mark.long
@pytest.mark.spark
def test_what_is_drawn(found: Found) -> None:
    assert sum(row["count"] for row in found.audit.rates if row.kind == "acked") == 193 + 50
    assert sum(row["count"] for row in found.audit.latencies) == 187 + 50  # Six of them twice.
    page = report.page(found.audit)
    assert page.count("<svg") == 2 and "LOST: 42 of" in page and "prefers-color-scheme: dark" in page
    assert report.lines(found.audit)[0].startswith("LOST: 42 of")


@pytest.mark.long
@pytest.mark.spark
def test_holes_in_the_evidence_are_no_losses(spark: Any) -> None:
    story = Story()
    story.offsets[TWO] = 50  # What it told before is given up.
    story.tell(ONE, event("started", 1, 0), *came(1, 10), event("acked", 1, 5))
    story.tell(TWO, event("started", 1, 0, queue="r", id=8)).tell(ONE, *came(11, 12))
    by_kind = {row.kind: (row["first"], row["last"]) for row in story.examine(spark).findings.collect()}
    assert by_kind == {"unknown": (6, 10), "lost": (11, 12)}


@pytest.mark.long
@pytest.mark.spark
def test_alarms(spark: Any, tmp_path: Path) -> None:
    """Of ten that were confirmed long ago, four are acknowledged, three wait, and three are nowhere. Of ten others a
    promotion has cut off five."""
    story = Story().tell(ONE, *came(1, 5)).tell(ONE, *came(6, 20), event("acked", 1, 4), event("acked", 11, 15))
    story.tell(TWO, event("promoted", 1, 15, ONE, epoch=2)).holds("q", 5, 7, 21)
    told: list[tuple[str, int, int]] = []

    def tell(alarm: alarms.Alarm) -> None:
        told.append((alarm["alarm"], alarm["first"], alarm["last"]))

    def look(wanted: object) -> Any:
        return story.present(spark)

    watch = alarms.Alarms(spark, Rules(late_s=5), str(tmp_path), None, look, tell)
    rows = story.events(spark)
    watch.batch(rows, 0)
    assert sorted(told) == [("late", 5, 7), ("missing", 16, 20)]
    told.clear()
    watch.batch(rows.limit(0), 1)  # Seen twice now.
    assert told == [("missing", 8, 10)]
    told.clear()
    watch.batch(rows.limit(0), 2)
    assert told == []  # Once is enough.
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["cuts-1", "cuts-2", "open-1", "open-2"]


@pytest.mark.parametrize(
    ("verdict", "code", "words"),
    [
        (Verdict(confirmed=1_000, acked=900, present=100, queues=1), 0, "NOTHING LOST: all 1,000 confirmed messages"),
        (Verdict(confirmed=9, lost=2, acked=7, queues=2), 1, "LOST: 2 of 9 confirmed messages are nowhere, in 2 "),
        (Verdict(confirmed=9, unknown=2, silent=("b",)), 2, "CANNOT SAY: what became of 2 of 9 messages is not known"),
        (Verdict(), 2, "CANNOT SAY: no journal tells of a confirmed message"),
    ],
)  # fmt: skip
def test_the_verdict_is_a_sentence(verdict: Verdict, code: int, words: str) -> None:
    assert verdict.code == code and verdict.sentence.startswith(words)


@pytest.mark.parametrize(("minutes", "expected"), [(0, 100), (1, 1_000), (60, 50_000), (24 * 60, 1_200_000)])
def test_the_time_axis_has_round_steps(minutes: int, expected: int) -> None:
    assert job.width(START_MS, START_MS + minutes * 60_000) == expected
