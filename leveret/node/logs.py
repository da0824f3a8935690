"""What a node writes for people: one line an event, to the console, a file, or both."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from leveret.node.settings import LOG_CATEGORIES, LOG_LEVELS

if TYPE_CHECKING:
    from leveret.node.settings import Settings

FORMAT = "%(asctime)s.%(msecs)03d [%(levelname)s] %(message)s"
DATE_FORMAT = "%Y-%m-%d %H:%M:%S"


def set_up(settings: Settings) -> None:
    """Direct the loggers `leveret` and `leveret.<category>` where the settings say."""
    logging.addLevelName(LOG_LEVELS["notice"], "notice")
    for name in ("debug", "info", "warning", "error", "critical"):
        logging.addLevelName(LOG_LEVELS[name], name)
    logger = logging.getLogger("leveret")
    logger.propagate = False
    for old in list(logger.handlers):
        logger.removeHandler(old)
    handlers: list[tuple[logging.Handler, str]] = []
    if settings.log_console:
        handlers.append((logging.StreamHandler(sys.stderr), settings.log_console_level))
    if settings.log_file is not None:
        file = logging.FileHandler(settings.log_file, encoding="utf-8", errors="replace")
        handlers.append((file, settings.log_file_level))
    for handler, level in handlers:
        handler.setLevel(LOG_LEVELS[level])
        handler.setFormatter(logging.Formatter(FORMAT, DATE_FORMAT))
        logger.addHandler(handler)
    for category in LOG_CATEGORIES:
        named = logger if category == "default" else logger.getChild(category)
        level = settings.log_levels.get(category, settings.log_levels.get("default", "debug"))
        named.setLevel(LOG_LEVELS[level])
