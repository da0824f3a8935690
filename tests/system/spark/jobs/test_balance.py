"""Plans that even out what nodes have to do."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from leveret.cli.pipeline import pipeline
from leveret.data.client import MemberInfo, QueueInfo
from pyspark_leveret.jobs import balance
from pyspark_leveret.jobs.balance import Figures, Use, forecast
from pyspark_leveret.jobs.support import common
from tests.support.servers import Server
from tests.system.spark.journals import Journals, event

NODES = ("n1", "n2", "n3")


def queue(
    name: str, messages: int, master: str, *members: tuple[str, bool], kind: str = "classic", id: int = 1
) -> Figures:
    told = tuple(MemberInfo(node, f"http://{node}", in_sync) for node, in_sync in members or [(master, True)])
    return Figures("/", QueueInfo(name, id, kind, True, 1, 2, messages, 100, master, told, ()))


def mirrored(name: str, messages: int, *nodes: str) -> Figures:
    """A queue whose copies are all in sync; the first node leads it."""
    return queue(name, messages, nodes[0], *((node, True) for node in nodes))


def moves(*queues: Figures, nodes: tuple[str, ...] = NODES, **limits: Any) -> list[tuple[str, str, str]]:
    made = balance.balance("messages", queues, {}, nodes, **limits)
    return [(one.queue, one.source, one.target) for one in made.moves]


# -- Plans -------------------------------------------------------------------------------------------------------------


def test_equal_queues_are_spread() -> None:
    made = balance.balance("messages", [queue(f"q{at}", 10, "n1") for at in range(6)], {}, NODES)
    assert made.before == {"n1": 60, "n2": 0, "n3": 0}
    assert made.after == {"n1": 20, "n2": 20, "n3": 20}
    assert len(made.moves) == 4
    assert {one.why for one in made.moves} == {
        "10 messages: n1 has 60 messages, n2 0",
        "10 messages: n1 has 60 messages, n3 0",
    }


def test_a_queue_moves_to_its_mirrors_only() -> None:
    assert moves(mirrored("a", 10, "n1", "n3"), queue("b", 10, "n1", ("n1", True), ("n2", False))) == [
        ("a", "n1", "n3")
    ]
    assert moves(queue("a", 10, "n1", kind="stream"), queue("b", 10, "n1", ("n1", True), ("n2", False))) == []


def test_nothing_moves_for_little() -> None:
    """One of 4 from 24 to 16 would bring them 8 closer, of 20 in the mean."""
    queues = [queue("big", 20, "n1"), queue("small", 4, "n1"), queue("other", 16, "n2")]
    assert moves(*queues, nodes=("n1", "n2"), threshold=0.39) == [("small", "n1", "n2")]
    assert moves(*queues, nodes=("n1", "n2"), threshold=0.41) == []


def test_a_plan_that_was_carried_out_has_no_successor() -> None:
    queues = [queue(f"q{at}", weight, "n1") for at, weight in enumerate((50, 40, 30, 20, 10, 5, 3, 2))]
    made = balance.balance("messages", queues, {}, NODES, threshold=0.0)
    to = {one.queue: one.target for one in made.moves}
    after = [queue(one.info.name, one.info.messages, to.get(one.info.name, "n1")) for one in queues]
    assert moves(*after) == []
    assert max(made.after.values()) - min(made.after.values()) <= 10


def test_one_large_queue_stays() -> None:
    assert moves(queue("all", 1000, "n1")) == []


def test_nodes_that_do_not_run_take_and_give_nothing() -> None:
    assert moves(queue("a", 10, "n1"), queue("b", 10, "n1"), nodes=("n1",)) == []
    gone = [replace_url(queue(name, messages, "gone")) for name, messages in (("a", 10), ("b", 1))]
    assert moves(*gone, queue("c", 1, "n1")) == []


def replace_url(one: Figures) -> Figures:
    """The same queue at a node that does not run, whose address nobody knows."""
    members = tuple(member._replace(url=None) for member in one.info.members)
    return Figures(one.vhost, one.info._replace(members=members))


def test_what_is_lighter_to_carry_moves() -> None:
    queues = [queue("far", 1000, "n1"), queue("near", 0, "n1", id=2)]
    uses = {("/", "far", 1): Use(10, {}), ("/", "near", 2): Use(10, {})}
    made = balance.balance("connections", queues, uses, ["n2"])
    assert [(one.queue, one.source, one.target) for one in made.moves] == [("near", "n1", "n2")]


def test_moves_are_limited() -> None:
    assert len(moves(*(queue(f"q{at}", 10, "n1") for at in range(9)), moves_max=2)) == 2
    assert moves() == []


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        ({at: 10.0 for at in range(10)}, 10.0),
        ({at: 100.0 + 10 * at for at in range(10)}, 240.0),
        ({at: float(at) for at in range(10)}, 14.0),
        ({at: 100.0 - 10 * at for at in range(10)}, 0.0),
        ({9: 1000.0}, 100 + 1000 * 4.5 / 82.5 * 9.5),
        ({}, 0.0),
    ],
)
def test_a_forecast_goes_on_as_it_was(loads: dict[int, float], expected: float) -> None:
    assert forecast(loads, 10, 5) == pytest.approx(expected)


# -- From figures and journals -----------------------------------------------------------------------------------------


def test_mirrors_that_are_not_in_sync_are_no_targets() -> None:
    queues = [
        queue("a", 100, "n1", ("n1", True), ("n2", False), ("n3", True)),
        queue("b", 90, "n1", ("n1", True), ("n2", False)),
        queue("c", 80, "n1"),
        queue("s", 70, "n1", kind="stream"),
    ]
    made = balance.balance("messages", queues, {}, threshold=0.0)
    assert [(one.queue, one.target) for one in made.moves] == [("a", "n3"), ("c", "n2")]
    assert made.as_json()["after"] == {"n1": 160, "n2": 80, "n3": 100}


def test_weights_by_strategy() -> None:
    queues = [queue("a", 5, "n1", ("n1", True), ("n2", True)), queue("b", 0, "n1", ("n1", True), ("n2", True), id=2)]
    uses = {("/", "b", 2): Use(7, {at: 60.0 for at in range(10)})}
    assert balance.balance("connections", queues, uses).before == {"n1": 7, "n2": 0}
    assert balance.balance("forecast", queues, uses, window_min=10).before == {"n1": 60, "n2": 0}
    assert balance.balance("messages", queues, uses, ["n9"]).before == {"n1": 5, "n2": 0, "n9": 0}


@pytest.mark.spark
def test_what_journals_tell(spark: Any) -> None:
    told = Journals()
    one, two = "1.1.1.1:5 -> 2.2.2.2:5672", "1.1.1.1:6 -> 2.2.2.2:5672"
    told.tell(0, event("published", first=1, last=1000, who=f"{one} (1)"))  # Too long ago.
    told.tell(600, event("published", first=1001, last=1010, who=f"{one} (1)"))
    told.tell(
        610,
        event("published", first=1011, last=1020, who=f"{one} (2)"),
        event("published", first=1021, last=1021, who="n2"),
    )
    told.tell(611, event("routed", who=f"{two} (1)", to="n1", count=1), node="n2")
    told.tell(
        700, event("delivered", first=1001, last=1005, who=f"{two} (1) tag"), event("acked", first=1001, last=1005)
    )
    told.tell(701, event("delivered", first=1006, last=1021, who="moving to n3"))
    told.tell(702, event("delivered", first=1006, last=1007, who="", to={f"{two} (1) tag": 1, "n2 other": 1}))
    found = balance.used(told.events(spark), 3)
    assert found == {("/", "q", 1): Use(3, {1: 21.0, 2: 12.0})}


@pytest.mark.spark
def test_the_command_writes_a_plan(
    spark: Any, data_broker: Server, data_channel: Any, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data_channel.queue_declare(name, durable=True)
    data_channel.basic_publish("", name, b"1")
    parser = argparse.ArgumentParser()
    balance.add_arguments(parser)
    common.add_access(parser)
    file = tmp_path / "plan.json"
    words = ["--by", "messages", "--servers", f"127.0.0.1:{data_broker.management_port}", "--node", "other@localhost"]
    words += ["--threshold", "0", "--plan", str(file), "--page", str(tmp_path / "plan.html")]
    assert balance.run(spark, parser.parse_args(words)) == 0
    made = json.loads(file.read_text())
    assert (made["version"], made["strategy"]) == (1, "messages")
    assert set(made["before"]) == {"leveret@localhost", "other@localhost"} == set(made["after"])
    assert made["before"]["leveret@localhost"] >= 1
    assert {tuple(one) for one in made["moves"]} <= {("vhost", "queue", "from", "to", "why")}
    assert str(file) in capsys.readouterr().out
    assert f"{len(made['moves'])} of " in (tmp_path / "plan.html").read_text()


@pytest.mark.parametrize("words", [["--by", "luck"], ["--by", "messages", "--threshold", "-1"], []])
def test_arguments_that_make_no_sense(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert pipeline(["balance", *words]) == 64
    assert "error: " in capsys.readouterr().err
