"""How a binding is named in paths: its `properties_key`.

RabbitMQ makes it of the routing key and, if there are any, a hash of the arguments: `key`, `key~hash`, `~` for nothing
at all. The hash is one of Erlang terms; ours is another, which nobody can tell who takes the name from a list or from
the `Location` of the answer to a POST, as everybody has to.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING
from urllib.parse import quote_plus

if TYPE_CHECKING:
    from leveret.metadata.model.records import Binding

HASH_BYTES = 6


def properties_key(binding: Binding) -> str:
    key = quote_plus(binding.key, safe="", errors="surrogateescape").replace("~", "%7E")
    if not binding.digest:
        return key or "~"
    return f"{key}~{base64.urlsafe_b64encode(binding.digest[:HASH_BYTES]).decode('ascii')}"
