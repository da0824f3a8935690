"""`spark.readStream.format("leveret")`: streams, journals and leased queues, each message in exactly one batch.

Spark asks for an end (`latestOffset`), writes it to its checkpoint, asks for the messages between the last end and this
one (`partitions`), reads and writes them, notes that in the checkpoint, and calls `commit`, though not before the next
batch is formed. If it dies anywhere in between, it asks again for the same two ends. This reader therefore follows
these rules:

**Spark's checkpoint is the only truth.** The reader remembers nothing that it could not ask for again. A batch is a
function of its end, and of nothing else:

    {"queues": {"orders": {"id": 7, "from": 900, "next": 1200}}, "split": 4, "settled": false, "tail": 0, "reader": "…"}

This batch has the messages 900 to 1199 of a queue: offsets of a stream, places in the lease of any other queue. `id` is
the queue's id: a queue that was deleted and declared again is another one, and counts from the beginning. `split` is
the number of tasks that was wanted when the end was found: a batch that is read again must be cut as before, because
the sink tells rows apart by task and position.

**Leases.** Messages of a classic or quorum queue are deleted when they are acknowledged, and go to other consumers when
a connection is lost. A lease gives them places that stay until they are acknowledged. `latestOffset` takes messages
into the lease, and may do so again: messages that were taken and are in no batch yet come first in the next one. Tasks
look up which messages have their places, because numbers change when a queue moves to another node. `commit`
acknowledges all places below an end.

**The owner of a lease.** A reader is told nothing of its query or its checkpoint, but the offsets that it makes come
back from there. So the first offset gets a random name, `reader`, and each later one has the same. `partitions` is
called with an end that is in the checkpoint: from then on the lease belongs to that reader. Another query that uses the
lease has another name, and is refused; the same query, restarted after whatever happened, has its own name. If it dies
before the checkpoint has an offset, its successor has another name, and the lease belongs to nobody yet.

**The tail.** Since `commit` is called for a batch only when the next one is formed, the last batch of a query that has
nothing more to read would stay unacknowledged: for ever, if the query ends there (availableNow). So if there is nothing
new, and places below the start are not acknowledged, the end differs from the start by its `tail` alone. That makes an
empty batch, and thereby a commit; after it there is nothing to acknowledge, and the end is the start. Such an end is
`settled`: once its batch is done, the lease holds nothing of this query. If the lease expires afterwards, because the
query did not run for days, nothing is lost, and the query continues with a new lease, wherever its places begin.

**Waiting.** A query without a trigger asks again at once when nothing is new. `latestOffset` returns when a message
comes, or after `POLL_S`, which is short because Spark asks the sources of a query one after the other.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from leveret.data.client import NOT_FOUND, DataClient, LeaseView, QueueInfo, Refused
from pyspark_leveret.connect import PLANNING_PATIENCE_S, LeveretError, client, explained
from pyspark_leveret.options import SourceOptions
from pyspark_leveret.schema import Column
from pyspark_leveret.source.planning import checked, find_queues, lose, message_bytes, position, shares, without_down
from pyspark_leveret.source.progress import Progress
from pyspark_leveret.source.reading import Piece, cut, read_piece
from pyspark_leveret.source.wait_for_messages import MessageWaiter
from pyspark_leveret.spark_versions import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

if TYPE_CHECKING:
    import pyarrow as pa

POLL_S: Final = 0.5
PIECE_ROWS: Final = 200_000  # A batch with more rows of a queue is cut into several tasks.
TOUCHES: Final = 10  # Times that a lease is renewed within its timeout.
LOCKED: Final = 423  # HTTP status: the lease belongs to another reader.
RUNS_MAX: Final = 1_000  # With so many runs, nothing is taken before an acknowledgement; a node refuses 2,000.

Offset = dict[str, Any]
Ends = dict[str, dict[str, int]]


class LeveretStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream reader that Spark calls, on the driver and (`read`) in tasks."""

    def __init__(self, options: SourceOptions, columns: Sequence[Column]) -> None:
        self.options = options
        self.columns = columns
        self._targets: dict[str, int] | None = None  # With availableNow: the end for each queue.
        self._progress = Progress(options.report_as)
        self._leases: dict[str, tuple[LeaseView, float]] = {}  # As last seen, and when it was last renewed.
        self._nexts: dict[str, int] = {}  # By queue: the message number to wait for.
        self._waiter: MessageWaiter | None = None
        self._deleted: set[str] = set()  # Queues that were missing at the last look, and reported.
        self._down: dict[str, str] = {}  # Queues that are out of reach, and the nodes that do not run.
        self._reader = ""  # Name of the owner of the leases; "" as long as it is not known.

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out what executors, which only read, do not need."""
        return {**self.__dict__, "_waiter": None, "_leases": {}, "_progress": None}

    # -- Called by Spark on the driver -----------------------------------------------------------------------------

    def initialOffset(self) -> Offset:
        asked = client(self.options.access, PLANNING_PATIENCE_S)
        self._reader = uuid.uuid4().hex
        ends: Ends = {}
        for info in self._queues(asked, is_new=True).values():
            if self._is_leased(info):
                place = self._lease(asked, info).acked
            else:
                place = position(self.options, self.options.starting, info, asked)
            ends[info.name] = _end(info, place, place)
        return self._offset(ends, 0)

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.options.max_offsets is not None:
            return ReadMaxRows(self.options.max_offsets)
        if self.options.max_bytes is not None:
            return ReadMaxBytes(self.options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        asked = client(self.options.access, PLANNING_PATIENCE_S)
        self._targets = {info.name: self._available(asked, info) for info in self._queues(asked).values()}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        end = self._look(start, limit)
        if end == start and self._targets is None:
            self._wait()
            end = self._look(start, limit)
        return end

    def reportLatestOffset(self) -> Offset | None:
        return self._progress.latest

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        ends: Ends = {name: about for name, about in end["queues"].items() if about["next"] > about["from"]}
        if not ends:
            return []
        asked = client(self.options.access)
        queues = self._queues(asked)
        self._reader = end.get("reader", "")
        pieces: list[InputPartition] = []
        for name, about in ends.items():
            info, first, after = queues.get(name), about["from"], about["next"]
            if name in self._down:
                raise LeveretError(f"cannot read queue '{name}': node {self._down[name]} does not run")
            if info is None or info.id != about["id"]:
                lose(self.options, f"queue '{name}' was deleted, and with it the messages {first} to {after - 1}")
                continue
            parts = max(-(-end["split"] // len(ends)), -(-(after - first) // PIECE_ROWS))
            lease = self.options.lease if self._is_leased(info) else None
            if lease is not None and self._reader:
                self._own(asked, info)
            pieces += [Piece(name, info.master, part, True, lease) for part in cut([(first, after - 1)], parts)]
        return pieces

    def commit(self, end: Offset) -> None:
        if self.options.lease is None:
            return
        asked = client(self.options.access)
        queues = self._queues(asked)
        for name, about in end["queues"].items():
            info = queues.get(name)
            if info is not None and info.id == about["id"] and self._is_leased(info):
                with self._leasing("acknowledge messages", name), self._bearing_deletion():
                    self._note(asked.lease_ack(name, self.options.lease, about["next"], end.get("reader", "")))

    def stop(self) -> None:
        if self._waiter is not None:
            self._waiter.close()

    # -- Called in tasks -------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Piece)
        return read_piece(self.options.access, self.columns, partition, self.options.fail_on_data_loss)

    # -- The end of a batch ----------------------------------------------------------------------------------------

    def _look(self, start: Offset, limit: ReadLimit) -> Offset:
        """Returns the end of the next batch; the start if there is nothing to read or acknowledge."""
        asked = client(self.options.access)
        queues = self._queues(asked)
        self._reader = start.get("reader") or self._reader or uuid.uuid4().hex
        self._nexts = {info.name: info.next for info in queues.values()}
        begins = self._begins(asked, start, queues)
        until = {info.name: self._available(asked, info) for info in queues.values()}
        now = until
        if self._targets is not None:
            now = {name: min(after, self._targets.get(name, 0)) for name, after in until.items()}
        given = self._limited({name: max(after - begins[name], 0) for name, after in now.items()}, queues, limit)
        ends = {
            name: _end(info, begins[name], self._reached(asked, info, begins[name], given[name]))
            for name, info in queues.items()
        }
        lags = {name: max(until[name] - about["next"], 0) for name, about in ends.items()}
        self._progress.look(asked, self._nexts, until, lags)
        # A queue whose node is down stays where it is.
        starts: Ends = start["queues"]
        ends |= {name: {**starts[name], "from": starts[name]["next"]} for name in starts if name in self._down}
        if any(about["next"] > about["from"] for about in ends.values()):
            return self._offset(ends, start["tail"])
        if any(view.acked < begins[name] for name, (view, _) in self._leases.items() if name in begins):
            return self._offset(ends, start["tail"] + 1, settled=True)
        return start

    def _limited(self, wanted: Mapping[str, int], queues: Mapping[str, QueueInfo], limit: ReadLimit) -> dict[str, int]:
        if isinstance(limit, ReadAllAvailable):  # Spark asks for everything, whatever the options say.
            return dict(wanted)
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        given = shares(wanted, rows)
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self.options.max_bytes
        if bytes_max is None:
            return given
        sizes = {name: message_bytes(queues[name]) for name in given}
        budget = shares({name: int(count * sizes[name]) for name, count in given.items()}, bytes_max)
        # At least one message of each queue, or a large one would stop the query.
        return {name: min(count, max(int(budget[name] / sizes[name]), 1)) for name, count in given.items()}

    def _reached(self, asked: DataClient, info: QueueInfo, begin: int, count: int) -> int:
        """Returns the end of `count` messages from `begin` on. Takes them into the lease if the queue is leased."""
        if not self._is_leased(info) or not count:
            return begin + count
        view = self._lease(asked, info)
        missing = begin + count - view.next
        if missing > 0 and len(view.runs) < RUNS_MAX:
            assert self.options.lease is not None
            with self._leasing("lease messages", info.name):
                view = self._note(asked.lease_take(info.name, self.options.lease, missing, owner=self._reader))
        return max(min(begin + count, view.next), begin)

    def _available(self, asked: DataClient, info: QueueInfo) -> int:
        """Returns the end of all messages that a queue has."""
        if not self._is_leased(info):
            return info.next
        view = self._lease(asked, info)
        out = sum(last - first + 1 for _, first, last in view.runs)
        return view.next + max(info.messages - out, 0)

    def _begins(self, asked: DataClient, start: Offset, queues: Mapping[str, QueueInfo]) -> dict[str, int]:
        """Returns where the next batch begins in each queue. A queue that is new to the query is read from its first
        message."""
        starts: Ends = start["queues"]
        for name in starts:
            if name not in queues and name not in self._deleted and name not in self._down:
                lose(self.options, f"queue '{name}' was deleted")
        self._deleted = {name for name in starts if name not in queues and name not in self._down}
        begins = {}
        for name, info in queues.items():
            about = starts.get(name)
            if about is not None and about["id"] != info.id:
                lose(self.options, f"queue '{name}' was deleted and declared anew")
                about = None
            if self._is_leased(info):
                view = self._lease(asked, info)
                begins[name] = view.acked if about is None else self._place(view, about["next"], start["settled"])
            else:
                begins[name] = info.first if about is None else checked(self.options, info, about["next"])
        return begins

    def _place(self, view: LeaseView, place: int, settled: bool) -> int:
        """Returns the place in a lease from which a query that has reached `place` continues."""
        if view.acked <= place <= view.next:
            return place
        where = f"lease '{view.name}' of queue '{view.queue}'"
        if place < view.acked:
            text = f"{where} is settled up to {view.acked}, this query had only {place}"
            lose(self.options, f"{text}: was it released, or do two queries use it?")
        elif not settled:
            lose(self.options, f"{where} has given {view.next} messages, this query had {place}: was it released?")
        return view.acked

    # -- Queues and leases -----------------------------------------------------------------------------------------

    def _queues(self, asked: DataClient, is_new: bool = False) -> dict[str, QueueInfo]:
        """Returns the subscribed queues. A query that bears losses goes on without those that were deleted; if it is
        new, there was none, and a name is wrong."""
        found = find_queues(self.options, asked, may_miss=not (is_new or self.options.fail_on_data_loss))
        down = {info.name: info.master for info in found.values() if info.is_down}
        queues = without_down(found, is_told=down == self._down)
        self._down = down
        for info in queues.values():
            if info.type != "stream" and self.options.lease is None:
                raise LeveretError(
                    f"queue '{info.name}' is of type {info.type}, whose messages go away when they are consumed: "
                    "name a lease for this query with option 'lease'"
                )
        return queues

    def _is_leased(self, info: QueueInfo) -> bool:
        return info.type != "stream"

    def _lease(self, asked: DataClient, info: QueueInfo) -> LeaseView:
        """Returns the lease as it is now. Raises LeveretError if another query owns it and must not lose it."""
        view = self._found(asked, info)
        if not self._reader or view.owner in ("", self._reader):
            return view
        if not self.options.lease_takeover:
            raise LeveretError(self._anothers(info.name))
        return self._own(asked, info)

    def _found(self, asked: DataClient, info: QueueInfo) -> LeaseView:
        """Returns the lease, whoever owns it. Renews it now and then, so that it does not expire while the query
        idles."""
        name = self.options.lease
        assert name is not None
        known = self._leases.get(info.name)
        told = next((view for view in info.leases if view.name == name), None)
        due_s = self.options.lease_timeout_ms / 1000 / TOUCHES
        if told is None or known is None or time.monotonic() - known[1] > due_s:
            with self._leasing(f"open lease '{name}'", info.name):
                return self._note(asked.lease_open(info.name, name, self.options.lease_timeout_ms))
        is_new = told.owner != known[0].owner and known[0].owner != self._reader
        if told.next > known[0].next or told.acked > known[0].acked or is_new:
            self._leases[info.name] = (told, known[1])
            return told
        return known[0]

    def _own(self, asked: DataClient, info: QueueInfo) -> LeaseView:
        """Makes this query the owner of the lease."""
        known = self._leases.get(info.name)
        if known is not None and known[0].owner == self._reader:
            return known[0]
        name, timeout_ms = self.options.lease, self.options.lease_timeout_ms
        assert name is not None
        with self._leasing(f"have lease '{name}'", info.name):
            return self._note(
                asked.lease_open(info.name, name, timeout_ms, self._reader, self.options.lease_takeover)
            )

    @contextmanager
    def _leasing(self, what: str, queue: str) -> Iterator[None]:
        with explained(self.options.access, f"{what} of queue '{queue}'"):
            try:
                yield
            except Refused as error:
                if error.status == LOCKED:
                    raise LeveretError(self._anothers(queue)) from None
                raise

    @contextmanager
    def _bearing_deletion(self) -> Iterator[None]:
        """Lets a query that bears losses go on if a queue is deleted just now; the next look at the queues reports
        it."""
        try:
            yield
        except Refused as error:
            if error.status != NOT_FOUND or self.options.fail_on_data_loss:
                raise

    def _anothers(self, queue: str) -> str:
        lease = self.options.lease
        return (
            f"lease '{lease}' of queue '{queue}' belongs to another query, or to this one with another checkpoint. "
            "Give each query a lease of its own. If this one is to go on in place of the other, set option "
            "'leaseTakeover' to true for one start, or release the lease: "
            f"leveretctl release_lease {queue} {lease}"
        )

    def _note(self, view: LeaseView) -> LeaseView:
        self._leases[view.queue] = (view, time.monotonic())
        return view

    def _offset(self, ends: Ends, tail: int, settled: bool = False) -> Offset:
        about: Offset = {"queues": ends, "split": self.options.min_partitions, "settled": settled, "tail": tail}
        return about if self.options.lease is None else about | {"reader": self._reader}

    def _wait(self) -> None:
        if self._waiter is None:
            self._waiter = MessageWaiter(self.options.access)
        self._waiter.wait(self._nexts, POLL_S)


def _end(info: QueueInfo, first: int, after: int) -> dict[str, int]:
    return {"id": info.id, "from": first, "next": after}
