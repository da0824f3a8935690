"""A configuration file whose text a test writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveret.node.config.load import COMMAND, ConfigError, Given, Loaded, load
from leveret.node.config.settings import Settings

HOME = {"HOME": "/home/ann"}


def given(**values: str) -> list[Given]:
    return [Given(key, value, COMMAND, f"--{key}") for key, value in values.items()]


class Configuration:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "broker.conf"

    def load(self, text: str, environ: dict[str, str] | None = None, **options: str) -> Loaded:
        self.path.write_text(text, encoding="utf-8")
        return load(given(**options), HOME | (environ or {}), str(self.path))

    def settings(self, text: str, environ: dict[str, str] | None = None, **options: str) -> Settings:
        return self.load(text, environ, **options).settings

    def problems(self, text: str, environ: dict[str, str] | None = None, **options: str) -> list[str]:
        with pytest.raises(ConfigError) as raised:
            self.load(text, environ, **options)
        return [problem.replace(str(self.path), "broker.conf") for problem in raised.value.problems]

    def warnings(self, text: str, environ: dict[str, str] | None = None, **options: str) -> list[str]:
        warnings = self.load(text, environ, **options).warnings
        return [warning.replace(str(self.path), "broker.conf") for warning in warnings]
