"""Reads pieces of queues in Spark's executors.

A piece is a list of ranges of message numbers of one queue. One task reads it, and reads the same however often it
runs. Ranges of a stream or a lease have no holes: if one of their messages is missing, data was lost, and the task
reports it (`is_whole`). A batch read of a classic queue promises nothing of that kind, because consumers take messages
out meanwhile.

The ranges of a lease can be many and short, if consumers took every other message before. A request for each would take
longer than reading the messages between them; so neighbouring ranges are read as one span, and the rest is dropped.

Spark's Python workers live longer than a task, and run the garbage collector after each one, over everything that was
ever imported: about as long as reading fifty thousand messages. `freeze` saves that after the first piece, when
everything, pandas last, has been imported.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from leveret.data.client import NOT_FOUND, LeaseView, Refused
from leveret.data.sheet import Sheet
from pyspark_leveret.connect import LeveretError, client, explained
from pyspark_leveret.options import Access
from pyspark_leveret.schema import Column
from pyspark_leveret.source.arrow import Bools, Converter, spread_ranges

GAP_MAX: Final = 1_000  # Message numbers between two ranges up to which both are read with one request.
SPAN_RANGES_MAX: Final = 10_000
SHEET_BYTES: Final = 8 << 20  # The most that a node gives in one answer. A row of a smaller one costs both sides more.

Range = tuple[int, int]  # First and last, both included.

log: Final = logging.getLogger("pyspark_leveret")


class Piece(InputPartition):
    """The part of a queue that one task reads."""

    def __init__(
        self, queue: str, node: str, ranges: Sequence[Range], is_whole: bool, lease: str | None = None
    ) -> None:
        super().__init__(None)
        self.queue = queue
        self.node = node
        self.ranges = tuple(ranges)
        self.is_whole = is_whole
        self.lease = lease  # With a lease, `ranges` are places in it instead of message numbers.

    def __repr__(self) -> str:
        return f"Piece({self.queue!r}, {self.ranges[:3]}{'…' if len(self.ranges) > 3 else ''})"


def cut(ranges: Sequence[Range], parts: int) -> list[list[Range]]:
    """Cuts ranges into up to `parts` lists with about the same number of messages. No list is empty."""
    total = count(ranges)
    bounds = [total * part // parts for part in range(1, parts + 1)]
    pieces: list[list[Range]] = [[]]
    done, at = 0, 0
    for first, last in ranges:
        while first <= last:
            room = bounds[at] - done
            if room == 0:
                at += 1
                if pieces[-1]:
                    pieces.append([])
                continue
            end = min(last, first + room - 1)
            pieces[-1].append((first, end))
            done += end - first + 1
            first = end + 1
    return pieces if pieces[-1] else pieces[:-1]


def spans(ranges: Sequence[Range]) -> Iterator[list[Range]]:
    """Groups ascending ranges with small gaps between them, to be read with one request."""
    span: list[Range] = []
    for one in ranges:
        if span and (not 0 < one[0] - span[-1][1] <= GAP_MAX or len(span) == SPAN_RANGES_MAX):
            yield span
            span = []
        span.append(one)
    if span:
        yield span


@cache
def freeze() -> None:
    """Excludes all that is loaded from garbage collection, once in a worker."""
    gc.freeze()


def read_piece(
    access: Access,
    columns: Sequence[Column],
    piece: Piece,
    fail_on_data_loss: bool,
    meeting: Callable[[Sheet], Bools | None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Reads the messages of a piece as Arrow batches: all, or those of each sheet for which `meeting` is true. Raises
    LeveretError."""
    converter = Converter(columns, piece.queue, piece.node)
    with explained(access, f"read queue '{piece.queue}'"):
        ranges = piece.ranges if piece.lease is None else _leased(access, piece, fail_on_data_loss)
        for span in spans(ranges):
            wanted, found = count(span), 0
            for sheet in _sheets(access, piece, span, fail_on_data_loss):
                keep = _inside(sheet, span)
                found += sheet.count if keep is None else int(np.count_nonzero(keep))
                if meeting is not None:
                    keep = _both(keep, meeting(sheet))
                yield from converter.batches(sheet, keep)
            if piece.is_whole and found != wanted:
                between = f"messages between {span[0][0]} and {span[-1][1]}"
                _report_loss(f"{wanted - found} {between} of queue '{piece.queue}' are gone", fail_on_data_loss)
    freeze()


def _sheets(access: Access, piece: Piece, span: Sequence[Range], fail_on_data_loss: bool) -> Iterator[Sheet]:
    """Reads a span. A queue that was deleted since the batch was planned is empty, if losses are no errors."""
    try:
        yield from client(access).read(piece.queue, span[0][0], span[-1][1], SHEET_BYTES)
    except Refused as error:
        if error.status != NOT_FOUND or fail_on_data_loss:
            raise
        log.warning("queue '%s' was deleted", piece.queue)


def _inside(sheet: Sheet, span: Sequence[Range]) -> Bools | None:
    """Returns which messages of a sheet are in the ranges of a span; None if all are."""
    if len(span) == 1:
        return None
    numbers = spread_ranges(sheet.ranges)
    firsts = np.array([first for first, _ in span])
    lasts = np.array([last for _, last in span])
    inside: Bools = numbers <= lasts[np.maximum(np.searchsorted(firsts, numbers, "right") - 1, 0)]
    return inside


def _both(one: Bools | None, other: Bools | None) -> Bools | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _leased(access: Access, piece: Piece, fail_on_data_loss: bool) -> list[Range]:
    """Returns the message numbers at the places of a leased piece."""
    try:
        [info] = client(access).queues([piece.queue])
    except Refused as error:
        if error.status != NOT_FOUND or fail_on_data_loss:
            raise
        leases: Sequence[LeaseView] = ()
    else:
        leases = info.leases
    view = next((one for one in leases if one.name == piece.lease), None)
    runs = () if view is None else view.runs
    ranges = [found for first, last in piece.ranges for found in numbers_at(runs, first, last)]
    missing = count(piece.ranges) - count(ranges)
    if missing:
        text = f"{missing} messages of lease '{piece.lease}' of queue '{piece.queue}' are gone"
        text += ": was it released, or does another query use it?"
        _report_loss(text, fail_on_data_loss, "goes on; what is in the queue again is read again")
    return ranges


def numbers_at(runs: Sequence[tuple[int, int, int]], first: int, last: int) -> list[Range]:
    """Returns the message numbers at places `first` to `last`. A run is (its first place, first number, last
    number)."""
    ranges = []
    for place, begin, end in runs:
        lo, hi = max(first, place), min(last, place + end - begin)
        if lo <= hi:
            ranges.append((begin + lo - place, begin + hi - place))
    return ranges


def count(ranges: Sequence[Range]) -> int:
    return sum(last - first + 1 for first, last in ranges)


def _report_loss(text: str, fail: bool, otherwise: str = "goes on without them") -> None:
    if fail:
        raise LeveretError(f"{text} (option 'failOnDataLoss' set to false {otherwise})")
    log.warning("%s", text)
