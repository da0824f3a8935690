"""The environment of the commands that are started here."""

from __future__ import annotations

from tests.unit.cli.conftest import bare_environment

__all__ = ["bare_environment"]
