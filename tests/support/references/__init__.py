"""References that are made from the code: docs/reference. `make references` writes them.

Names, values, defaults, options and signatures come from the tables and parsers that the programs use themselves; the
routes and the metrics from a node that runs for a moment. One line of meaning for each comes from the docstrings, help
texts and tables of the code, or from the `…_texts` modules here. `tests/style/test_references.py` fails if a name has
no such line, or if a file is not what `pages` makes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.support.references import arguments, commands, http_api, python_api, running_node, settings

FOLDER: Final = Path(__file__).parents[3] / "docs" / "reference"


def problems(observed: running_node.Observed) -> list[str]:
    """Returns what has to be written by hand before the references are complete."""
    return [
        *settings.missing(), *arguments.missing(), *http_api.missing_routes(observed),
        *http_api.missing_metrics(observed.metrics),
    ]  # fmt: skip


def pages(observed: running_node.Observed) -> dict[str, str]:
    return {
        "configuration.md": settings.configuration(),
        "leveretctl.md": commands.leveretctl(),
        "leveret.md": commands.leveret(),
        "policies-and-arguments.md": arguments.reference(),
        "metrics.md": http_api.metrics(observed),
        "http-requests.md": http_api.requests(observed),
        "openapi.json": http_api.openapi(observed),
        "testing-api.md": python_api.testing(),
        "data-api.md": python_api.data(),
    }
