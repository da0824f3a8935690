"""What `python -m benchmarks.scaling` counts: relations that hold on any machine, however fast it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.scaling import cli
from benchmarks.scaling.clusters import Line, capacity, fitted, loss_s
from benchmarks.scaling.store import COPIES, LOCATORS
from benchmarks.scaling.tables import markdown
from benchmarks.single.growth import Point

Found = dict[str, list[Point]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("scaling")
    assert cli.main(["--quick", "--output", str(folder)]) == 0
    assert "### A node is lost" in (folder / "scaling.md").read_text()
    result: Found = json.loads((folder / "scaling.json").read_text())
    return result


def test_metadata_grows_with_queues_and_not_faster(found: Found) -> None:
    few, many = found["metadata"]
    times = many["queues"] / few["queues"]
    assert times == 10
    for name in ("memory_bytes", "snapshot_bytes"):
        assert many[name] / many["queues"] == pytest.approx(few[name] / few["queues"], rel=0.15), name
    assert many["declare_bytes"] == few["declare_bytes"]


@pytest.mark.parametrize("locator", LOCATORS)
def test_copies_are_even_if_each_choice_knows_the_earlier_ones(found: Found, locator: str) -> None:
    for point in found[f"placement {locator}"]:
        assert point["copies_max"] - point["copies_mean"] <= 1
        if locator != "random":
            assert point["masters_max"] - point["masters_min"] <= 1


def test_a_new_node_gets_its_share_with_as_many_moves(found: Found) -> None:
    for name in ("rebalance", "rebalance mirrored"):
        for point in found[name]:
            assert point["masters_max"] - point["masters_min"] <= 1
            assert point["moves"] == point["queues"] // point["nodes"]


def test_links_are_two_a_pair(found: Found) -> None:
    for point in found["clusters"]:
        assert point["connections"] == point["nodes"] * (point["nodes"] - 1)


def test_idle_queues_send_nothing(found: Found) -> None:
    for point in found["clusters"]:
        assert point["laden_ring_frames"] == 0
        assert point["laden_bytes"] == pytest.approx(point["idle_bytes"], rel=0.02)


def test_the_leader_tells_everybody(found: Found) -> None:
    small, large = found["clusters"]
    more = (large["nodes"] - 1) / (small["nodes"] - 1)
    assert large["idle_leader_bytes"] == pytest.approx(more * small["idle_leader_bytes"], rel=0.1)


def test_every_lost_master_is_replaced(found: Found) -> None:
    for point in found["clusters"]:
        assert point["lost_masters"] == point["queues"] / point["nodes"]
        assert point["promoted"] == point["lost_masters"]
        assert point["lost_commands"] >= point["lost_masters"]


def test_each_mirror_is_one_hop_of_the_ring(found: Found) -> None:
    alone, three = found["traffic"]
    assert alone["link_bytes"] < 1
    hops = COPIES - 1
    assert three["link_bytes"] == pytest.approx(hops * three["master_link_bytes"], rel=0.02), "the master sends it once"
    assert 100 < three["master_link_bytes"] < 200, "the body, its properties, and little besides"


def test_lines() -> None:
    assert fitted([(1, 5), (2, 7), (3, 9)]) == Line(3, 2)
    assert fitted([(4, 6)]) == Line(6, 0)
    assert Line(3, 2).at(10) == 23


def test_capacity_is_what_processors_allow() -> None:
    costs: list[Point] = [
        {"members": 1, "master_us": 1.0, "mirror_us": 0.0},
        {"members": 3, "master_us": 2.0, "mirror_us": 1.0},
    ]
    assert capacity(1, 1, costs) == 1e6
    assert capacity(12, 3, costs) == 3e6


def test_a_loss_is_between_those_that_were_run() -> None:
    points: list[Point] = [{"lost_masters": 100, "served_s": 4.0}, {"lost_masters": 10, "served_s": 1.0}]
    assert loss_s(points, 5) == 0.5
    assert loss_s(points, 10) == 1.0
    assert loss_s(points, 55) == 2.5
    assert loss_s(points, 101) is None, "nobody has seen that"


def test_tables_need_not_all_be_there() -> None:
    assert markdown({}) == ""
    assert "| 7 |" in markdown(
        {
            "traffic": [
                {"members": 7}
                | dict.fromkeys(("per_s", "master_us", "mirror_us"), 1.0)
                | dict.fromkeys(("master_link_bytes", "link_bytes"), 1.0)
            ]
        }
    )


def test_earlier_results_can_be_shown_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--quick", "--only", "placement", "--output", str(tmp_path)]
    assert cli.main(arguments) == 0
    shown = capsys.readouterr().out
    assert cli.main(["--from", str(tmp_path / "scaling.json"), "--output", str(tmp_path)]) == 0
    assert capsys.readouterr().out == shown
