"""Settings and fixtures of all tests."""

from __future__ import annotations

import re

import hypothesis
import pytest

# How long an example takes says what else runs on the machine, and nothing about it.
hypothesis.settings.register_profile("leveret", deadline=None)
hypothesis.settings.load_profile("leveret")


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """For a queue or an exchange: no other test has it."""
    return re.sub(r"\W+", "-", request.node.nodeid.partition("::")[2])[-100:]
