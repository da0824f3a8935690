"""What a link writes into the headers of a message: where it came from.

Messages of one publisher tend to have equal header frames. What was made of the last one is kept, and used as long as
the next has the same bytes there. Between two Leverets each message also has an origin as its first header, which is
different in each: it is taken out before, and put back in front afterwards.
"""

from __future__ import annotations

from typing import Final

from leveret.protocol.frames import HEADER_AT, with_header
from leveret.protocol.origins import take_origin, with_origins
from leveret.protocol.properties import BadProperties, Properties, body_size, decode_content, encode
from leveret.protocol.received_from import CLUSTER, RECEIVED_FROM, VHOST, hops_of, may_go_on
from leveret.protocol.tables import BadTable, Field, Table

ORIGINAL_EXCHANGE: Final = "x-original-exchange"
ORIGINAL_KEY: Final = "x-original-routing-key"
ORIGINAL_CC: Final = "x-original-cc"
VISIT_COUNT: Final = "visit-count"
VISITS_MAX: Final = 64  # Entries of a message that goes from queue to queue.
_INT64_MAX: Final = (1 << 63) - 1
_ORIGIN_BYTES: Final = 200  # More than an origin takes.


class HeaderWriter:
    """Writes the headers of messages that come by a link. `header_max`: the longest header frame of the downstream."""

    def __init__(self, trusts_user_id: bool, header_max: int) -> None:
        self.trusts_user_id = trusts_user_id
        self.header_max = header_max
        self.before = b"\x00"  # No header frame begins like this.
        self.was_redelivered = False
        self.route = b""
        self.after: bytes | None = b""

    def __call__(self, content: bytes, redelivered: bool, route: bytes) -> bytes | None:
        """Return the message as it goes on; None if it must not. Raises ValueError if it is malformed."""
        try:
            origin = take_origin(content)
            plain = origin.content
            is_alike = redelivered == self.was_redelivered and route == self.route and plain.startswith(self.before)
            if not is_alike:
                end = HEADER_AT + int.from_bytes(plain[3:7], "big") + 1
                self.before, self.was_redelivered, self.route = plain[:end], redelivered, route
                self.after = self._header(plain, redelivered, route)
            if self.after is None:
                return None
            made = self.after + plain[len(self.before) :]
            return with_origins([made], origin.source, origin.number)[0] if origin.number else made
        except (BadProperties, BadTable) as error:
            self.before = b"\x00"
            raise ValueError(str(error)) from None

    def _header(self, content: bytes, redelivered: bool, route: bytes) -> bytes | None:
        """Return the header frame as it goes on."""
        properties = decode_content(content, HEADER_AT)
        if not self.write(properties, redelivered, route):
            return None
        if not self.trusts_user_id:
            properties.user_id = None
        made = with_header(content, encode(properties, body_size(content, HEADER_AT)))
        frame = made[: HEADER_AT + int.from_bytes(made[3:7], "big") + 1]
        # AMQP cannot split a header frame: one that has no room for where it was cannot go on.
        return frame if len(frame) + _ORIGIN_BYTES <= self.header_max else None

    def write(self, properties: Properties, redelivered: bool, route: bytes) -> bool:
        """Set the headers; return whether the message may go on."""
        raise NotImplementedError


class ExchangeHeaders(HeaderWriter):
    """Messages that come to an exchange: not if they were here already, or come by too many links."""

    def __init__(
        self,
        uri: str,
        exchange: str,
        upstream: tuple[str | None, str],
        here: tuple[str, str],
        max_hops: int,
        trusts_user_id: bool,
        header_max: int,
    ) -> None:
        """`upstream` and `here`: the name of the cluster, and the vhost."""
        super().__init__(trusts_user_id, header_max)
        self.first: Table = {"uri": Field("S", uri), "exchange": Field("S", exchange)}
        cluster, vhost = upstream
        self.last: Table = {} if cluster is None else {CLUSTER: Field("S", cluster)}
        self.last[VHOST] = Field("S", vhost)
        self.here = here
        self.max_hops = max_hops

    def write(self, properties: Properties, redelivered: bool, route: bytes) -> bool:
        headers = dict(properties.headers or {})
        if not may_go_on(headers, self.max_hops, *self.here):
            return False
        entry = {**self.first, "redelivered": Field("t", redelivered), **self.last}
        headers[RECEIVED_FROM] = Field("A", [Field("F", entry), *hops_of(headers)])
        properties.headers = headers
        return True


class QueueHeaders(HeaderWriter):
    """Messages that come to a queue. They may come back, which is counted."""

    def __init__(self, uri: str, queue: str, trusts_user_id: bool, header_max: int) -> None:
        super().__init__(trusts_user_id, header_max)
        self.place: Table = {"uri": Field("S", uri), "queue": Field("S", queue)}

    def write(self, properties: Properties, redelivered: bool, route: bytes) -> bool:
        headers = {(ORIGINAL_CC if name == "CC" else name): one for name, one in (properties.headers or {}).items()}
        hops = hops_of(headers)
        if not hops:
            middle = 1 + route[0]
            exchange, key = route[1:middle], route[middle + 1 :]
            headers[ORIGINAL_EXCHANGE] = Field("S", exchange.decode("utf-8", "surrogateescape"))
            headers[ORIGINAL_KEY] = Field("S", key.decode("utf-8", "surrogateescape"))
        here = [one for one in hops if self._is_here(one)]
        others = [one for one in hops if not self._is_here(one)]
        visits = max((_visits(one) for one in here), default=0)
        entry = {
            **self.place,
            "redelivered": Field("t", redelivered),
            VISIT_COUNT: Field("l", min(visits + 1, _INT64_MAX)),
        }
        headers[RECEIVED_FROM] = Field("A", [Field("F", entry), *others[: VISITS_MAX - 1]])
        properties.headers = headers
        return True

    def _is_here(self, entry: Field) -> bool:
        return entry.kind == "F" and all(entry.value.get(name) == one for name, one in self.place.items())


def _visits(entry: Field) -> int:
    count = entry.value.get(VISIT_COUNT)
    return count.value if count is not None and isinstance(count.value, int) and count.value > 0 else 0
