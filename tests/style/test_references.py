"""docs/reference is complete, and is what the code makes of it."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.references import FOLDER, pages, problems, python_api
from tests.support.references.running_node import Observed, observe

ADVICE = "run: make references (python -m tests.support.references), and commit docs/reference"


@pytest.fixture(scope="module")
def observed() -> Observed:
    return observe()


def test_everything_has_a_line(observed: Observed) -> None:
    """Each key, argument, request and metric is explained. What is missing is named, with the file to add it to."""
    assert problems(observed) == []


def test_the_files_are_current(observed: Observed) -> None:
    made = pages(observed)
    there = {file.name: file.read_text(encoding="utf-8") for file in FOLDER.iterdir()}
    old = sorted(name for name in made if there.get(name) != made[name])
    assert not old, f"{', '.join(old)} in docs/reference is not what the code says now; {ADVICE}"
    assert set(there) == {*made, "index.md"}


def test_public_names_are_described() -> None:
    text = python_api.testing() + python_api.data()
    assert [name for name in python_api.names() if not re.search(rf"^### {name}$", text, re.MULTILINE)] == []


def test_openapi() -> None:
    """Paths differ in more than the names of their parts, and operations have names of their own."""
    document = json.loads((FOLDER / "openapi.json").read_text(encoding="utf-8"))
    shapes = [re.sub(r"\{\w+\}", "{}", path) for path in document["paths"]]
    assert len(shapes) == len(set(shapes)) > 100
    operations = [one for path in document["paths"].values() for one in path.values()]
    names = [one["operationId"] for one in operations]
    assert len(names) == len(set(names)) and all(one["summary"] for one in operations)
    for path, methods in document["paths"].items():
        for one in methods.values():
            told = [part["name"] for part in one.get("parameters", ()) if part["in"] == "path"]
            assert told == re.findall(r"\{(\w+)\}", path)


def test_the_board(observed: Observed) -> None:
    """The Grafana board and the alerts of docs/how-to/monitoring.md ask for metrics that exist."""
    known = {one.name for one in observed.metrics}
    labels = {label for one in observed.metrics for label in one.labels}
    board = json.loads((FOLDER.parents[1] / "packaging" / "grafana" / "leveret.json").read_text(encoding="utf-8"))
    targets = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    assert len(targets) > 20
    page = (FOLDER.parent / "how-to" / "monitoring.md").read_text(encoding="utf-8")
    named = set(re.findall(r"rabbitmq_[a-z_]+", "\n".join([*targets, *re.findall(r"`([^`]+)`", page)])))
    assert {re.sub("_bucket$", "", name) for name in named} - known - labels == set()
