"""Parses and checks the options that users give with `.option(name, value)`. Errors say what to do.

Names are those of Spark's Kafka source where it has such an option. Spark ignores the case of names, and passes all
values as text. An unknown name is refused, not ignored: a misspelt `maxOffsetsPerTriger` would otherwise be noticed
when the job runs out of memory. A known name is refused where it means nothing, like `exchange` for a source.

`servers` chooses the protocol:

    host, host:port                   the management port (15672) for a source, the AMQP port (5672) for a sink
    http://…, https://…               the management port; not for sinks
    amqp://…, amqps://…               AMQP: for a sink, or for a source that is another broker than Leveret
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from leveret.client.tls import default_context
from pyspark_leveret.schema import nearest

EARLIEST: Final = -2  # Values as in the JSON of Spark's Kafka source.
LATEST: Final = -1
LEASE_TIMEOUT_MS: Final = 86_400_000
SERVERS: Final = "127.0.0.1"
AMQP_PORT: Final = 5672
PRODUCER_BYTES_MAX: Final = 100  # A broker takes 128, and the task is part of the name.
BATCHES_MAX: Final = 1 << 31  # The number of a message is that of its batch in front of 32 bits for its row.
AMQPS_PORT: Final = 5671

ACCESS: Final = ("servers", "vhost", "user", "password", "cafile", "certfile", "keyfile")
SOURCE: Final = (
    "subscribe", "subscribePattern", "startingOffsets", "startingOffsetsByTimestamp", "minPartitions", "failOnDataLoss",
    "includeHeaders",
)  # fmt: skip
BATCH: Final = ("endingOffsets", "endingOffsetsByTimestamp")
STREAM: Final = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "lease", "leaseTimeout", "leaseTakeover", "reportAs")
# Options that other AMQP brokers cannot serve: they are read from the head, by name.
LEVERETS: Final = (
    "subscribePattern", "startingOffsets", "startingOffsetsByTimestamp", "failOnDataLoss", "lease", "leaseTimeout",
    "leaseTakeover", "reportAs",
)  # fmt: skip
SINK: Final = ("exchange", "routingKey", "mandatory", "sortRows")
BATCH_SINK: Final = ("producer", "producerBatch")
SPARKS: Final = ("checkpointLocation", "queryName", "path")  # Spark passes its own options to us.
KNOWN: Final = (*ACCESS, *SOURCE, *BATCH, *STREAM, *SINK, *BATCH_SINK)

_SIZE: Final = re.compile(r"(\d+)\s*([kmg]?)i?b?", re.IGNORECASE)
_SIZES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_TIME: Final = re.compile(r"(\d+)\s*(ms|milliseconds?|s|seconds?|m|minutes?|h|hours?|d|days?|)", re.IGNORECASE)
_TIMES: Final = {"ms": 1, "": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class BadOption(ValueError):
    """An option that cannot be used. The text is for the user."""


@dataclass(frozen=True)
class Access:
    """Servers, vhost, credentials and TLS files."""

    servers: tuple[str, ...] = (SERVERS,)
    vhost: str = "/"
    user: str = "guest"
    password: str = field(default="guest", repr=False)
    cafile: str | None = None
    certfile: str | None = None
    keyfile: str | None = None

    @property
    def speaks_amqp(self) -> bool:
        return self.servers[0].startswith("amqp")

    def tls(self) -> ssl.SSLContext | None:
        """Returns a context with the given files; None if no option names one."""
        if self.cafile is None and self.certfile is None:
            return None
        try:
            context = default_context(self.cafile)
            if self.certfile is not None:
                context.load_cert_chain(self.certfile, self.keyfile)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(name for name in (self.cafile, self.certfile, self.keyfile) if name)
            raise BadOption(f"cannot use the TLS files {files}: {error}") from None
        return context

    def amqp_addresses(self) -> list[tuple[str, int, bool]]:
        """Returns (host, port, TLS?) of each server, for AMQP connections."""
        addresses = []
        for server in self.servers:
            parts = urlsplit(server if "//" in server else f"//{server}")
            tls = parts.scheme == "amqps" or (not parts.scheme and self.cafile is not None)
            addresses.append((parts.hostname or "", parts.port or (AMQPS_PORT if tls else AMQP_PORT), tls))
        return addresses


@dataclass(frozen=True)
class Positions:
    """Where to begin or end: EARLIEST, LATEST or a message number, for all queues or by queue; or a time by queue."""

    everywhere: int
    by_queue: Mapping[str, int] = field(default_factory=dict)
    times_ms: Mapping[str, int] = field(default_factory=dict)

    def says(self, queue: str) -> bool:
        """Whether there is a message number or a time for a queue."""
        return queue in self.times_ms or self.by_queue.get(queue, LATEST) >= 0


@dataclass(frozen=True)
class SourceOptions:
    access: Access
    queues: tuple[str, ...]
    pattern: str | None
    starting: Positions
    ending: Positions
    min_partitions: int
    fail_on_data_loss: bool
    max_offsets: int | None
    max_bytes: int | None
    lease: str | None
    lease_timeout_ms: int
    lease_takeover: bool  # Take the lease even if another query has it.
    report_as: str | None = None  # The name under which the broker's page shows how far the query is.


@dataclass(frozen=True)
class SinkOptions:
    access: Access
    exchange: str | None
    routing_key: str | None
    mandatory: bool
    sort_rows: bool
    producer: str | None = None  # The name under which the rows of a batch are taken once.
    producer_batch: int = 0


class Options:
    """Options by name, in any case. Raises BadOption for unknown names."""

    def __init__(self, options: Mapping[str, str]) -> None:
        known = {name.lower(): name for name in (*KNOWN, *SPARKS)}
        self.given: dict[str, str] = {}
        for name, value in options.items():
            if name.lower() not in known:
                raise BadOption(f"unknown option '{name}'{nearest(name, KNOWN)}")
            self.given[known[name.lower()]] = value

    def include_headers(self) -> bool:
        return self._boolean("includeHeaders", True)

    def source(self, streaming: bool) -> SourceOptions:
        what = "a streaming source" if streaming else "a batch source"
        self._refuse(BATCH if streaming else STREAM, what, "spark.read" if streaming else "spark.readStream")
        self._refuse((*SINK, *BATCH_SINK), what, "a sink")
        if "path" in self.given:
            raise BadOption("load() takes no path: name queues with .option('subscribe', 'queue1,queue2')")
        queues, pattern = self._subscribed()
        lease = self.given.get("lease")
        for option in ("leaseTimeout", "leaseTakeover"):
            if lease is None and option in self.given:
                raise BadOption(f"option '{option}' needs option 'lease', the name of the lease")
        if lease is not None and not 0 < len(lease.encode()) <= 128:
            raise BadOption("option 'lease' is a name of 1 to 128 bytes")
        report_as = self.given.get("reportAs")
        if report_as is not None and not (0 < len(report_as) <= 100 and report_as.isprintable()):
            raise BadOption("option 'reportAs' is a name of 1 to 100 characters")
        access = self._access(("", "http", "https", "amqp", "amqps"))
        if access.speaks_amqp:
            self._refuse(LEVERETS, "a source that speaks AMQP", "one that names management ports (http://host:15672)")
        starting = self._positions("starting", LATEST if streaming and lease is None else EARLIEST)
        ending = self._positions("ending", LATEST)
        _check_order("Offsets", starting.by_queue, ending.by_queue)
        _check_order("OffsetsByTimestamp", starting.times_ms, ending.times_ms)
        if lease is not None and starting != Positions(EARLIEST):
            raise BadOption("a leased queue is read from its head: leave 'startingOffsets' out, or make it 'earliest'")
        return SourceOptions(
            access=access,
            queues=queues,
            pattern=pattern,
            starting=starting,
            ending=ending,
            min_partitions=self._number("minPartitions") or 1,
            fail_on_data_loss=self._boolean("failOnDataLoss", True),
            max_offsets=self._number("maxOffsetsPerTrigger"),
            max_bytes=self._size("maxBytesPerTrigger"),
            lease=lease,
            lease_timeout_ms=self._time_ms("leaseTimeout", LEASE_TIMEOUT_MS),
            lease_takeover=self._boolean("leaseTakeover", False),
            report_as=report_as,
        )

    def sink(self, streaming: bool = False) -> SinkOptions:
        self._refuse((*SOURCE, *BATCH, *STREAM), "a sink", "a source")
        if streaming:
            here = "a streaming sink, which Spark tells its query and batch"
            self._refuse(BATCH_SINK, here, "a batch (df.write), also one in foreachBatch")
        producer, batch = self._producer()
        if "path" in self.given:
            raise BadOption("save() takes no path: say where messages go with .option('exchange', …) or a column")
        return SinkOptions(
            access=self._access(("", "amqp", "amqps")),
            exchange=self.given.get("exchange"),
            routing_key=self.given.get("routingKey"),
            mandatory=self._boolean("mandatory", True),
            sort_rows=self._boolean("sortRows", False),
            producer=producer,
            producer_batch=batch,
        )

    # -- Parts ---------------------------------------------------------------------------------------------------

    def _refuse(self, names: Iterable[str], here: str, there: str) -> None:
        for name in names:
            if name in self.given:
                raise BadOption(f"option '{name}' means nothing for {here}, only for {there}")

    def _access(self, schemes: tuple[str, ...]) -> Access:
        servers = _names(self.given.get("servers", SERVERS))
        found = {_scheme(server, schemes) for server in servers}
        if not servers:
            raise BadOption("option 'servers' names no server")
        if "http" in schemes and len({scheme.startswith("amqp") for scheme in found}) > 1:
            raise BadOption("option 'servers' mixes amqp:// and others; they are different ports, give one kind")
        if "keyfile" in self.given and "certfile" not in self.given:
            raise BadOption("option 'keyfile' needs option 'certfile', the certificate that the key is for")
        rest = {name: self.given[name] for name in ACCESS[1:] if name in self.given}
        return Access(servers, **rest)

    def _producer(self) -> tuple[str | None, int]:
        producer, batch = self.given.get("producer"), self.given.get("producerBatch")
        if (producer is None) != (batch is None):
            raise BadOption("options 'producer' (a name) and 'producerBatch' (a number that grows) go together")
        if producer is None or batch is None:
            return None, 0
        if not 0 < len(producer.encode()) <= PRODUCER_BYTES_MAX:
            raise BadOption(f"option 'producer' is a name of 1 to {PRODUCER_BYTES_MAX} bytes")
        if not batch.isascii() or not batch.isdecimal() or int(batch) >= BATCHES_MAX:
            raise BadOption(f"option 'producerBatch' is a whole number from 0 to {BATCHES_MAX - 1}, not {batch!r}")
        return producer, int(batch)

    def _subscribed(self) -> tuple[tuple[str, ...], str | None]:
        names, pattern = self.given.get("subscribe"), self.given.get("subscribePattern")
        if (names is None) == (pattern is None):
            raise BadOption(
                "give one of the options 'subscribe' (queue1,queue2) and 'subscribePattern' (a regular expression)"
            )
        if pattern is not None:
            try:
                re.compile(pattern)
            except re.error as error:
                raise BadOption(f"option 'subscribePattern' is not a regular expression: {error}") from None
            return (), pattern
        queues = tuple(dict.fromkeys(_names(names or "")))
        if not queues:
            raise BadOption("option 'subscribe' names no queue")
        return queues, None

    def _positions(self, side: str, default: int) -> Positions:
        plain, timed = f"{side}Offsets", f"{side}OffsetsByTimestamp"
        if plain in self.given and timed in self.given:
            raise BadOption(f"give one of the options '{plain}' and '{timed}'")
        if timed in self.given:
            return Positions(default, {}, self._by_queue(timed, lowest=0))
        said = self.given.get(plain)
        if said is None:
            return Positions(default)
        if said.strip().lower() in ("earliest", "latest"):
            position = EARLIEST if said.strip().lower() == "earliest" else LATEST
            if side == "ending" and position == EARLIEST:
                raise BadOption(f"option '{plain}' cannot be 'earliest'")
            return Positions(position)
        return Positions(default, self._by_queue(plain, lowest=EARLIEST))

    def _by_queue(self, name: str, lowest: int) -> Mapping[str, int]:
        try:
            said = json.loads(self.given[name])
        except ValueError:
            said = None
        if not isinstance(said, dict) or not all(type(one) is int and one >= lowest for one in said.values()):
            also = "" if "Timestamp" in name else "'earliest', 'latest' or "
            meaning = "milliseconds since 1970" if "Timestamp" in name else "offsets; -2 is earliest, -1 latest"
            raise BadOption(
                f"option '{name}' is {also}JSON like {{\"queue\": 23}} ({meaning}), not {self.given[name]!r}"
            )
        queues, pattern = self._subscribed()  # Queues that match a pattern may be declared later.
        for queue in said:
            if pattern is None and queue not in queues:
                raise BadOption(f"option '{name}' names queue '{queue}', which 'subscribe' does not")
        return said

    def _number(self, name: str) -> int | None:
        said = self.given.get(name)
        if said is None:
            return None
        if not said.strip().isdecimal() or int(said) < 1:
            raise BadOption(f"option '{name}' is a number above 0, not {said!r}")
        return int(said)

    def _size(self, name: str) -> int | None:
        said = self.given.get(name)
        if said is None:
            return None
        match = _SIZE.fullmatch(said.strip())
        if match is None or int(match[1]) < 1:
            raise BadOption(f"option '{name}' is a number of bytes above 0, perhaps with k, m or g, not {said!r}")
        return int(match[1]) * _SIZES[match[2].lower()]

    def _time_ms(self, name: str, default: int) -> int:
        said = self.given.get(name)
        if said is None:
            return default
        match = _TIME.fullmatch(said.strip())
        if match is None or int(match[1]) < 1:
            raise BadOption(
                f"option '{name}' is a time like '90 minutes', '12 h' or a number of milliseconds, not {said!r}"
            )
        unit = match[2].lower()
        return int(match[1]) * (_TIMES["ms"] if unit.startswith(("ms", "milli")) else _TIMES[unit[:1]])

    def _boolean(self, name: str, default: bool) -> bool:
        said = self.given.get(name)
        if said is None:
            return default
        if said.strip().lower() not in ("true", "false"):
            raise BadOption(f"option '{name}' is 'true' or 'false', not {said!r}")
        return said.strip().lower() == "true"


def _check_order(name: str, starting: Mapping[str, int], ending: Mapping[str, int]) -> None:
    """Refuses a range whose end is before its start: it would be read as one without messages."""
    for queue in starting.keys() & ending.keys():
        if starting[queue] > ending[queue] >= 0:
            raise BadOption(
                f"option 'starting{name}' is above 'ending{name}' for queue '{queue}': "
                f"{starting[queue]} and {ending[queue]}"
            )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _scheme(server: str, allowed: tuple[str, ...]) -> str:
    try:
        parts = urlsplit(server if "//" in server else f"//{server}")
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise BadOption(f"option 'servers': {server}: {error}") from None
    if parts.scheme not in allowed:
        kinds = ", ".join(f"{scheme}://host:port" for scheme in allowed if scheme)
        raise BadOption(f"option 'servers': {server} is not what is spoken with here: host:port, {kinds}")
    if parts.username is not None or parts.password is not None:
        raise BadOption("option 'servers' holds a password: give it as options 'user' and 'password'")
    if not host or parts.path.strip("/") or parts.query:
        raise BadOption(f"option 'servers': {server} is no server: host, host:port or scheme://host:port is meant")
    return parts.scheme
