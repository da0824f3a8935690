"""`rabbitmq-server`: `leveret server` with RabbitMQ's folders and defaults, for images and scripts made for RabbitMQ.

It reads `rabbitmq.conf`, `conf.d/*.conf`, `rabbitmq-env.conf` and `enabled_plugins` in `/etc/rabbitmq`, if they are
there, and keeps its data below `/var/lib/rabbitmq/mnesia` if it may write there. Clients are served at every interface.

The node is called `rabbit@HOST`, as in RabbitMQ. There, a container that is made anew gets another host name, another
node name and so an empty data folder. Here the node takes the name of the data that it finds, if that is one node's.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import MutableMapping, Sequence
from typing import Final

from leveret.base.exit_codes import OK, USAGE
from leveret.cli.guard import guarded
from leveret.cli.server import start
from leveret.node.config.load import PLUGINS, Given

ETC: Final = "/etc/rabbitmq"
VAR: Final = "/var/lib/rabbitmq"
PREFIX: Final = "rabbit"
WHERE: Final = "rabbitmq-server"


def server(words: Sequence[str], etc: str = ETC, var: str = VAR) -> int:
    detached = "-detached" in words
    others = [word for word in words if word != "-detached"]
    if others:
        print(f"rabbitmq-server: {others[0]}: only -detached is understood; see leveret server --help", file=sys.stderr)
        return USAGE
    if detached:
        subprocess.Popen(  # It is not waited for: it is to outlive this process.
            [sys.executable, "-c", f"from leveret.cli.rabbitmq.programs import main; main({WHERE!r})"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return OK
    apply_defaults(os.environ, os.uname().nodename, etc, var)
    return guarded(WHERE, lambda: start([Given("listeners.tcp.default", "5672", PLUGINS, WHERE)], None))


def apply_defaults(environ: MutableMapping[str, str], host: str, etc: str, var: str) -> None:
    """Adds what RabbitMQ's own script would, where the environment says nothing."""
    files = {
        "RABBITMQ_CONF_ENV_FILE": "rabbitmq-env.conf",
        "RABBITMQ_CONFIG_FILE": "rabbitmq.conf",
        "RABBITMQ_CONFIG_FILES": "conf.d",
        "RABBITMQ_ENABLED_PLUGINS_FILE": "enabled_plugins",
    }
    for variable, name in files.items():
        path = os.path.join(etc, name)
        if not environ.get(variable) and os.path.exists(path):
            environ[variable] = path
    base = environ.get("RABBITMQ_MNESIA_BASE", "")
    if not base and not environ.get("RABBITMQ_MNESIA_DIR") and os.access(var, os.W_OK):
        base = environ["RABBITMQ_MNESIA_BASE"] = os.path.join(var, "mnesia")
    if "LEVERET_NODE_NAME" in environ:
        return
    long = environ.get("RABBITMQ_USE_LONGNAME") == "true"
    here = host if long else host.partition(".")[0]
    name = environ.get("RABBITMQ_NODENAME") or _node_of(base) or f"{PREFIX}@{here}"
    environ["RABBITMQ_NODENAME"] = name if "@" in name else f"{name}@{here}"


def _node_of(base: str) -> str | None:
    """Returns the name of the node whose data is in a folder, of several processes the first one's; None if there is
    none, or several nodes."""
    try:
        found = [name for name in os.listdir(base) if "@" in name and os.path.isdir(os.path.join(base, name))]
    except OSError:
        return None
    first = [name for name in found if re.sub(r"-[0-9]+(?=@)", "", name) not in {*found} - {name}]
    return first[0] if len(first) == 1 else None
