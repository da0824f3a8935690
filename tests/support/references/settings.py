"""The reference of configuration keys: values and defaults from the schema, meanings from `setting_texts`."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Final

from leveret.node.config import config_as_text, schema
from leveret.node.config.load import load
from leveret.node.config.settings import Settings
from tests.support.references import markdown as md
from tests.support.references.setting_texts import SETTINGS

ABOUT: Final = """\
Every key of the configuration file, with its values and its default. A file has one `key = value` on a line, as in
`rabbitmq.conf`; `leveret config check FILE` checks it and shows the settings it makes. Each key can also be an
environment variable: `LEVERET_` and the key in capitals, with `_` for dots (`LEVERET_MAX_MESSAGE_SIZE=16MiB`). How the
sources are combined is told in [operations](../operations.md). `N` in a key stands for a number or a name.

Times are milliseconds unless they have a unit (`500ms`, `10s`, `5m`, `1h`); sizes are bytes unless they have one
(`64KB`, `50MB`, `2GiB`)."""
OTHERS: Final = """\
A node that is given a file of RabbitMQ's must not do less than the file says without a word. So RabbitMQ's other keys
are of three kinds."""
# Values that no parser tells, because it takes any text.
FREE: Final = "a text"
FOLDERS: Final = ("data_dir", "log.dir")
# Defaults of keys that belong together with others, or are lists.
TOGETHER: Final = {
    "host": "127.0.0.1",
    "port": "5672",
    "auth_mechanisms.$": "PLAIN, AMQPLAIN",
    "loopback_users.$": "guest: true",
    "default_user_tags.$": "administrator: true",
    "log.dir": "",
}
UNITS: Final = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
# With these, settings that are pointless by default have theirs.
MORE: Final = "fsync = interval\ncluster_rebalance = timer\nlog.file = node.log\n"


def missing() -> list[str]:
    """Returns a line for each key without a text, and for each text without a key."""
    keys, texts = {*schema.USED, *schema.ALIASES}, [key for part in SETTINGS.values() for key in part]
    where = "SETTINGS in tests/support/references/setting_texts.py"
    found = [f"the configuration key {key} has no line in {where}" for key in sorted(keys - set(texts))]
    return found + [f"{where} has {key}, which is no configuration key" for key in texts if key not in keys]


def configuration() -> str:
    usual = defaults()
    parts = []
    for section, texts in SETTINGS.items():
        rows = [
            (md.code(key.replace("$", "N")), values(key), md.code(usual.get(key, "")), text)
            for key, text in texts.items()
            if key in schema.USED or key in schema.ALIASES
        ]
        parts.append(f"## {section}\n\n{md.table(('key', 'values', 'default', ''), rows)}")
    parts.append(f"## Other keys of RabbitMQ\n\n{OTHERS}")
    fixed = [(md.code(key.replace("$", "N")), ", ".join(map(md.code, one.holds))) for key, one in schema.FIXED.items()]
    parts.append(f"**Only these values**; with others the node does not start.\n\n{md.table(('key', 'value'), fixed)}")
    ignored = [(md.code(key), rule.reason) for key, rule in schema.IGNORED.items()]
    parts.append(f"**Ignored**, with a warning at the start.\n\n{md.table(('key', 'because'), ignored)}")
    refused = [(md.code(key), rule.what) for key, rule in schema.UNSUPPORTED.items() if key not in schema.USED]
    text = "**Not supported**: the node does not start. The second column is what the message names. A longer key that "
    parts.append(f"{text}has an entry above is supported.\n\n{md.table(('key', ''), refused)}")
    return md.page("Configuration keys", ABOUT, *parts)


def values(key: str) -> str:
    """Returns what a parser says of a value that it cannot take."""
    rule = schema.USED[schema.ALIASES.get(key, key)]
    if rule.parse is schema.word or key in FOLDERS:
        return "a folder" if key in FOLDERS else FREE
    try:
        rule.parse("\x00/")
    except (schema.NotAllowed, schema.NotSupported) as error:
        text = str(error)
        for words, short in (
            ("one of true, false", "`true`, `false`"),
            (", or with a unit: 500ms, 10s, 5m, 1h", ""),
            (", or with a unit: 64KB, 50MB, 2GiB", ""),
            ("the path of a file that this user may read", "a file"),
            ("the path of a file or a folder that this user may read", "a file or a folder"),
            ("the path of a folder, there or to be made", "a folder"),
            ("an address or a host's name, such as 127.0.0.1, ::1 or localhost", "a host"),
            ("; leveretctl too comes in here, so there is always one", ""),
        ):
            text = text.replace(words, short)
        if text.startswith("bytes from"):
            text = re.sub(r"[0-9]+", lambda number: _size(number[0], " "), text)
        if text.startswith("one of "):
            text = ", ".join(md.code(word.strip()) for word in text.removeprefix("one of ").split(","))
        return text.partition(" (unterminated")[0]
    return "a regular expression" if rule.parse is schema.pattern else FREE


def defaults() -> dict[str, str]:
    """Returns the default of each key that has one."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "more.conf")
        file.write_text(MORE)
        for config in (str(file), None):
            home = {"HOME": folder}
            for key, text in config_as_text.pairs(load([], home, config).settings).items():
                if not config or key not in MORE:
                    found[_pattern(key)] = text.replace(folder, "~")
    for key, rule in schema.USED.items():
        if rule.field and key not in found and (value := getattr(Settings(data_dir=""), rule.field)) is not None:
            found[key] = config_as_text._simple(key, value)
    secret = {key: "guest" for key in found if found[key] == config_as_text.SECRET and key.endswith("pass")}
    found = {**{key: text for key, text in found.items() if text != config_as_text.SECRET}, **secret, **TOGETHER}
    return {key: _size(text) if values(key).startswith("bytes") else text for key, text in found.items()}


def _size(number: str, gap: str = "") -> str:
    """Returns a number of bytes with the largest unit that leaves it whole."""
    if not number.isdecimal() or number == "0":
        return number
    for unit, name in UNITS:
        if int(number) % unit == 0:
            return f"{int(number) // unit}{gap}{name}"
    return number


def _pattern(key: str) -> str:
    head, _, _last = key.rpartition(".")
    return key if key in schema.USED else f"{head}.$"
