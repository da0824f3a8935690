"""The options of a load, from the command line."""

from __future__ import annotations

import argparse
import ssl
from dataclasses import dataclass, field
from typing import Final

from leveret.client.address import Address, read_uri
from leveret.client.amqp import Argument
from leveret.client.tls import context, problem
from leveret.perf.publisher import NAMED_BYTES_MIN

QUEUES_MAX: Final = 100_000


@dataclass(frozen=True, kw_only=True)
class Options:
    """A load. None means no limit; `ack_every` 0 means consumers without acks."""

    addresses: tuple[Address, ...]
    tls: ssl.SSLContext | None = None
    publishers: int = 1
    consumers: int = 1
    size: int = 12
    rate: float | None = None
    window: int | None = None
    prefetch: int = 0
    ack_every: int = 1
    persistent: bool = False
    mandatory: bool = False
    queues: tuple[str, ...]
    keep_queues: bool = False
    predeclared: bool = False
    queue_arguments: dict[str, Argument] = field(default_factory=dict)
    exchange: str = ""
    exchange_type: str = "direct"
    key: str | None = None
    seconds: float | None = None
    publish_max: int | None = None  # for each publisher
    consume_max: int | None = None  # for each consumer
    interval_s: float = 1.0
    json: bool = False
    quiet: bool = False
    ledger: str | None = None  # A folder.

    @property
    def copies(self) -> int:
        """Returns the number of queues to which each message goes."""
        if self.exchange and (self.key is not None or self.exchange_type in ("fanout", "headers")):
            return len(self.queues)
        return 1


def to_options(parsed: argparse.Namespace, run: str) -> Options:
    """Checks and converts parsed arguments. `run` names queues without a name. Raises ValueError for contradictions."""
    if not parsed.publishers and not parsed.consumers:
        raise ValueError("no publishers and no consumers: there is nothing to do")
    if parsed.exchange == "" and (parsed.type is not None):
        raise ValueError("--type needs an --exchange")
    if parsed.exchange == "" and parsed.routing_key is not None:
        raise ValueError("--routing-key needs an --exchange: the default exchange routes by the names of queues")
    if parsed.queue is not None and (parsed.queues or 1) != 1:
        raise ValueError("--queue names one queue; for several, use --pattern and --queues")
    if parsed.predeclared and parsed.queue is None and parsed.pattern is None:
        raise ValueError("--predeclared needs --queue or --pattern, the names of the queues")
    if parsed.predeclared and parsed.queue_args:
        raise ValueError("--queue-args are for queues that are declared, not for --predeclared ones")
    _check_ledger(parsed)
    names = _names(parsed, run)
    addresses = tuple(read_uri(one) for one in parsed.uri or ["amqp://127.0.0.1"])
    return Options(
        addresses=addresses,
        tls=_tls(parsed, addresses),
        publishers=parsed.publishers,
        consumers=parsed.consumers,
        size=parsed.size,
        rate=parsed.rate or None,
        window=parsed.confirm,
        prefetch=parsed.prefetch,
        ack_every=0 if parsed.autoack else parsed.multi_ack_every,
        persistent=parsed.persistent or "persistent" in parsed.flag,
        mandatory="mandatory" in parsed.flag,
        queues=names,
        keep_queues=parsed.queue is not None or parsed.pattern is not None,
        predeclared=parsed.predeclared,
        queue_arguments=parsed.queue_args,
        exchange=parsed.exchange,
        exchange_type=parsed.type or "direct",
        key=parsed.routing_key,
        seconds=parsed.time,
        publish_max=parsed.pmessages,
        consume_max=parsed.cmessages,
        interval_s=parsed.interval,
        json=parsed.json,
        quiet=parsed.quiet,
        ledger=parsed.ledger,
    )


def _check_ledger(parsed: argparse.Namespace) -> None:
    if parsed.ledger is None:
        return
    if parsed.exchange:
        raise ValueError("--ledger records the queue of each message, so it needs the default exchange")
    if parsed.publishers and parsed.confirm is None:
        raise ValueError("--ledger records what is confirmed, so it needs --confirm")
    if parsed.publishers and parsed.size < NAMED_BYTES_MIN:
        raise ValueError(f"--ledger needs room for a number in each message: use --size {NAMED_BYTES_MIN} or more")


def _tls(parsed: argparse.Namespace, addresses: tuple[Address, ...]) -> ssl.SSLContext | None:
    given = [f"--{name}" for name in ("cacert", "cert", "key", "insecure") if getattr(parsed, name)]
    if not any(address.tls for address in addresses):
        if given:
            raise ValueError(f"{given[0]} is for TLS: use an address that begins with amqps://")
        return None
    if parsed.key is not None and parsed.cert is None:
        raise ValueError("--key needs a --cert")
    if parsed.insecure and parsed.cacert is not None:
        raise ValueError("use either --insecure or --cacert")
    try:
        return context(parsed.cacert, parsed.cert, parsed.key, parsed.insecure)
    except OSError as error:
        files = ", ".join(one for one in (parsed.cacert, parsed.cert, parsed.key) if one is not None)
        raise ValueError(f"{files}: {problem(error)}") from None


def _names(parsed: argparse.Namespace, run: str) -> tuple[str, ...]:
    if parsed.queue is not None:
        return (parsed.queue,)
    count = parsed.queues or 1
    if count > QUEUES_MAX:
        raise ValueError(f"at most {QUEUES_MAX} queues")
    pattern = parsed.pattern if parsed.pattern is not None else f"{run}-%05d"
    try:
        names = tuple(pattern % number for number in range(1, count + 1))
    except (TypeError, ValueError):
        raise ValueError(f'--pattern {pattern} has no single %d for the number of a queue, as in "perf-%03d"') from None
    return names
