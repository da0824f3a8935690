"""Benchmarks of mirrored queues: that they run, count what they say, and show what they found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import cli
from benchmarks.clusters import mirrors
from benchmarks.clusters.failover import Gaps
from benchmarks.clusters.mirrors import MEMBERS, PARTS, ROWS, Row, medians_and_worst
from benchmarks.clusters.refill import WAYS, Following, Leading, Timeline
from benchmarks.report import results
from benchmarks.report.results import Results
from benchmarks.ruler import brokers
from tests.system.benchmarks.test_benchmarks import Answering, delivery


def test_all_parts_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    few = tuple(row for row in ROWS if row.name in ("safe", "three nodes", "quorum"))
    monkeypatch.setattr(mirrors, "ROWS", few)
    monkeypatch.setattr(mirrors, "MEMBERS", (1, 3))  # Five nodes would only be more of the same.
    arguments = ["--only", "mirrors", "--leveret-only", "--quick", "--seconds", "0.05", "--output", str(tmp_path)]
    assert cli.main(arguments) == 0
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["problems"] == []
    assert list(found["mirrored"]) == [row.name for row in few]
    assert list(found["members"]) == ["1", "3"]
    assert found["pause"]["leveret"]["confirm_s"] > 0 and found["pause"]["leveret"]["deliver_s"] > 0
    assert found["promotion"]["leveret"]["get_s"] > 0
    assert found["handover"]["leveret"]["deliver_s"] > 0 and found["move"]["leveret"]["whole_s"] > 0
    assert all(found["refill"]["leveret"][f"{way}_during_per_s"] > 0 for way in WAYS)
    shown = capsys.readouterr().out
    for row in ("**three nodes**", "3 copies", "first publish confirmed", "a mirror fills, load in the same queue"):
        assert f"| {row}" in shown


def test_mirrors_stand_for_their_parts() -> None:
    assert set(PARTS) <= set(cli.parse(["--only", "mirrors"]).only)
    assert not set(PARTS) & set(cli.parse(["--only", "cluster"]).only)
    assert set(PARTS) <= set(cli.parse([]).only)


def test_rows_need_no_more_nodes_than_there_are() -> None:
    assert all(max(row.publish, row.consume, row.master) < mirrors.NODES for row in ROWS)
    three = next(row for row in ROWS if row.name == "three nodes")
    assert isinstance(three, Row) and len({three.publish, three.consume, three.master}) == 3
    assert MEMBERS == (1, 2, 3, 5)


def test_gaps_are_between_moments_at_which_something_came() -> None:
    gaps = Gaps(10.0)
    for count, now in ((0, 10.1), (1, 10.2), (1, 10.9), (5, 11.0), (6, 11.1)):
        gaps.note(count, now)
    assert gaps.longest == pytest.approx(0.8)
    assert gaps.end(11.5) == pytest.approx(0.8)
    assert gaps.end(13.1) == pytest.approx(2.0), "nothing came again"


def test_a_timeline_tells_rates_and_stalls() -> None:
    line = Timeline()
    for second, count in enumerate((0, 100, 200, 200, 200, 300)):
        line.note(float(second), count)
    assert line.per_s(0, 2) == 100
    assert line.per_s(2, 5) == pytest.approx(100 / 3)
    assert line.per_s(5, 9) == 0, "beyond its end there is nothing"
    assert line.longest_stall_s(0, 2) == 1
    assert line.longest_stall_s(1, 5) == 3


def test_a_consumer_that_follows_leaves_what_waited() -> None:
    """It may have no more out than its prefetch count beyond what the publisher got confirmed."""
    near, far = Answering(), Answering()
    follower = Following(near, [], 2)
    leader = Leading(far, [b"x"], 1, None)
    follower.leader, leader.follower = leader, follower
    near.far.sendall(b"".join(delivery(tag) for tag in range(1, 1_001)))
    while follower.delivered < 1_000:
        follower.on_readable()
    assert follower.acked == 1_000
    near.far.sendall(b"".join(delivery(tag) for tag in range(1_001, 2_003)))
    while follower.delivered < 2_002:
        follower.on_readable()
    follower.catch_up()
    assert follower.acked <= 2_000
    leader.confirms.on_told(2, True, False)
    follower.catch_up()
    assert follower.acked == 2_002
    near.close()
    far.close()


def test_medians_and_worst() -> None:
    rows = [{"a_s": 1.0}, {"a_s": 5.0}, {"a_s": 2.0}]
    assert medians_and_worst(rows) == {"a_s": 2.0, "a_s_worst": 5.0}


def test_text_becomes_an_erlang_binary() -> None:
    assert brokers._binary('{"ha-mode": "all"}') == '<<"{\\"ha-mode\\": \\"all\\"}">>'
    assert brokers._binary("a\\b") == '<<"a\\\\b">>'


def test_tables_show_incidents() -> None:
    found = Results(
        mirrored={"safe": {"leveret": 600.0, "rabbitmq": 200.0}},
        members={"1": {"leveret": 600.0, "rabbitmq": 200.0}},
        pause={"leveret": {"confirm_s": 0.05}, "rabbitmq": {"confirm_s": 0.2}},
        refill={"leveret": {"same_kept": 0.9}},
    )
    text = results.markdown(found)
    assert "| **safe**: persistent, confirmed, acked | 600 | 200 | 3.00 |" in text
    assert "| 1 copy | 600 | 200 | 3.00 |" in text
    assert "longest time without a confirm, s | 0.050 | 0.200 | 0.25 |" in text
    assert "load in the same queue: meanwhile of before | 0.90 |  |" in text
