"""Makes the settings of a node for a test, by the same rules as `leveret server`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from leveret.node.config.load import COMMAND, DEFAULT, Given, load

if TYPE_CHECKING:
    from leveret.node.config.settings import Settings


def load_settings(values: Mapping[str, str], config_file: str | None) -> Settings:
    """Loads settings from values by their keys in a configuration file, and a file. Raises ConfigError. Environment
    variables are ignored: a test that passes in one shell must pass in another. There is no management port unless
    `config_file` asks for one, since few tests need it."""
    given = [Given("management.tcp.port", "none", DEFAULT, "leveret.testing")]
    given += [Given(key, value, COMMAND, f"leveret.testing, {key}") for key, value in values.items()]
    return load(given, {}, config_file).settings
