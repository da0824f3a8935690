"""Files that are damaged."""

from __future__ import annotations

from pathlib import Path

from faults.cases.folders import kind_of

ROOT = Path("/data")


def test_files_of_all_queues_are_of_one_kind() -> None:
    queues = ROOT / "msg_stores" / "vhosts" / "628WB79CIFDYO9LJI6DKMI09L" / "queues"
    kinds = {
        kind_of(queues / name / "0.idx", ROOT) for name in ("65S8ZCEZTA6S0W76Q4QVC5CSZ", "8DNW41TNCYIW3A3WDL93QHUK5")
    }
    assert kinds == {"msg_stores/vhosts//queues//.idx"}


def test_names_of_one_kind_differ_in_numbers() -> None:
    assert kind_of(ROOT / "log-00012.segment", ROOT) == kind_of(ROOT / "log-7.segment", ROOT) == "log-.segment"
    assert kind_of(ROOT / "DECISION_TAB.LOG", ROOT) != kind_of(ROOT / "LATEST.LOG", ROOT)
