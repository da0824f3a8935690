"""What a shovel changes of messages: properties that are set, and the headers that tell where they came by.

Messages of one publisher tend to have equal header frames. What was made of the last one is kept, and used as long as
the next has the same bytes there, so that most messages cost a comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from leveret.protocol.frames import HEADER_AT, with_header
from leveret.protocol.properties import BadProperties, body_size, decode_content, encode
from leveret.protocol.tables import BadTable, Field

if TYPE_CHECKING:
    from leveret.base.json_values import Json
    from leveret.metadata.shovel.parameters import Shovel

SHOVELLED: Final = "x-shovelled"
TIMESTAMP: Final = "x-shovelled-timestamp"
SHOVELLED_MAX: Final = 64  # Tables of earlier shovels that are kept: a loop must not make a header without end.


def forward_table(
    shovel: Shovel, cluster: str, vhost: str, name: str, src_uri: str, dest_uri: str
) -> dict[str, Field]:
    """Return the table that the header `x-shovelled` has of this shovel."""
    texts = {
        "shovelled-by": cluster,
        "shovel-type": "dynamic",
        "shovel-name": name,
        "shovel-vhost": vhost,
        "src-uri": src_uri,
        "dest-uri": dest_uri,
    }
    if shovel.src_queue is not None:
        texts["src-queue"] = shovel.src_queue
    if shovel.src_exchange is not None:
        texts["src-exchange"] = shovel.src_exchange
        texts["src-exchange-key"] = shovel.src_exchange_key
    if shovel.dest_queue is not None:
        texts["dest-queue"] = shovel.dest_queue
    if shovel.dest_exchange is not None:
        texts["dest-exchange"] = shovel.dest_exchange
    if shovel.dest_exchange_key is not None:
        texts["dest-exchange-key"] = shovel.dest_exchange_key
    return {key: Field("S", text) for key, text in texts.items()}


class Rewriter:
    """Sets properties and headers. `now_s` gives the time of day in seconds; None: there is no time stamp."""

    def __init__(
        self,
        properties: Mapping[str, Json],
        forward: dict[str, Field] | None = None,
        now_s: Callable[[], int] | None = None,
    ) -> None:
        self.properties: dict[str, Any] = {
            name: int(value) if isinstance(value, float) else value for name, value in properties.items()
        }
        self.forward = forward
        self.now_s = now_s
        self.made_at = 0  # When the last header was made.
        self.before = b"\x00"  # No header frame begins like this.
        self.after = b""

    def __call__(self, content: bytes) -> bytes:
        """Return the content with what is set. Raises ValueError."""
        now = 0 if self.now_s is None else self.now_s()
        if now != self.made_at or not content.startswith(self.before):
            end = HEADER_AT + int.from_bytes(content[3:7], "big") + 1
            made = self._made(content, now)
            self.before, self.made_at = content[:end], now
            self.after = made[: HEADER_AT + int.from_bytes(made[3:7], "big") + 1]
            return made
        return self.after + content[len(self.before) :]

    def _made(self, content: bytes, now: int) -> bytes:
        try:
            properties = decode_content(content, HEADER_AT)
            for name, value in self.properties.items():
                setattr(properties, name, value)
            if self.forward is not None or self.now_s is not None:
                table = dict(properties.headers or {})
                if self.forward is not None:
                    old = table.get(SHOVELLED)
                    earlier = old.value[: SHOVELLED_MAX - 1] if old is not None and old.kind == "A" else []
                    table[SHOVELLED] = Field("A", [Field("F", self.forward), *earlier])
                if self.now_s is not None:
                    table[TIMESTAMP] = Field("l", now)
                properties.headers = table
            return with_header(content, encode(properties, body_size(content, HEADER_AT)))
        except (BadProperties, BadTable) as error:
            raise ValueError(str(error)) from None
