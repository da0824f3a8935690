"""Dead-letters messages: publishes those that leave a queue unconsumed to its dead-letter exchange, with the reason.

A message is dead-lettered because it was rejected, because it has expired, because the queue was too long, or because
it was delivered too often. The reason is in RabbitMQ's `x-death` header: an array with one table for each queue and
reason, the latest first, that counts how often.

**At least once.** A dead-lettered message is a publish like any other, and the original stays in its queue, hidden,
until all target queues have it safe. So whatever fails in between, the message is in one place or the other:

    leaves `ready` ──▶ published ──▶ confirmed by all target queues ──▶ settled in its queue
                          └── refused by one, or routed to none: tried again (`retry`), or dropped
                              as RabbitMQ does unless the strategy is `at-least-once`

If the node stops before the settle, the message is back at the next start and is dead-lettered again: it may come
twice. The same holds if its queue moves to another node: what is under way is put back, moves too, and is dead-lettered
there.

**Direct reply-to.** With the default exchange as dead-letter exchange, the key of the queue or of the message can be an
address of direct reply-to: the message is a reply then, as any message with that key (`remote.direct_reply_to`).

**Many at once.** A policy can make a million messages grow old in one moment, and a consumer can reject a hundred
thousand. Each turn has a budget of dead letters (`WORK_MAX`); the others wait in `retry`, in order, and are published
in the next turns. No queue has fewer dead letters published than it got messages meanwhile, whatever the budget: so
what waits is never more than its queue once had. Neighbours with equal headers cost little, since only the first of
them is decoded and routed.

**Cycles.** A message that is about to enter a queue in which it was dead-lettered before, and that was not rejected on
the way round, would go round for ever unnoticed: it is not routed there.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from leveret.broker.dead_letter.retry import DeadLetterRetry
from leveret.broker.delivery.batch import MESSAGE_OVERHEAD, Span
from leveret.broker.delivery.confirms import Pending
from leveret.broker.routing.reply_address import PREFIX
from leveret.metadata.rules.ha_policy import is_quorum
from leveret.protocol.frames import HEADER_AT, header_end, with_header
from leveret.protocol.properties import BODY_SIZE_AT, BODY_SIZE_END, body_size, decode_content, encode
from leveret.protocol.tables import Field, Table
from leveret.storage.format.queue_block import LASTING_KIND, PERSISTENT, REDELIVERED, SHARED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from leveret.broker.broker import AnyQueue, Broker
    from leveret.broker.delivery.batch import Batch
    from leveret.broker.queue.queue import Queue

REJECTED: Final = "rejected"
MAXLEN: Final = "maxlen"
COUNT_MAX: Final = (1 << 63) - 1
LOGGED_MAX: Final = 10_000
WORK_MAX: Final = 8_192  # For dead letters in one turn, in units of
WORK_ALIKE: Final = 1  # one whose headers are those of the one before,
WORK_NEW: Final = 24  # and of one whose headers are made.

if TYPE_CHECKING:
    # Content, exchange and key as a delivery has them, target queues, and addresses of direct reply-to.
    Way = tuple[bytes, bytes, tuple[AnyQueue, ...], list[str]]


class Alike:
    """Makes dead letters of neighbours whose headers, but for the size of the body, and keys are those of the first.

    Such messages of one queue that leave in one turn for one reason get equal headers, and go the same way.
    """

    __slots__ = ("after", "before", "end", "key", "made_after", "made_before")

    def __init__(self, old: bytes, key: bytes, made: bytes) -> None:
        """`made` is the dead letter of `old`."""
        self.key = key
        self.end = header_end(old)
        self.before, self.after = old[:BODY_SIZE_AT], old[BODY_SIZE_END : self.end]
        self.made_before, self.made_after = made[:BODY_SIZE_AT], made[BODY_SIZE_END : header_end(made)]

    def make(self, old: bytes, key: bytes) -> bytes | None:
        """Return the dead letter; None if the message is not like the first."""
        if key != self.key or not old.startswith(self.before) or not old.startswith(self.after, BODY_SIZE_END):
            return None
        return b"".join((self.made_before, old[BODY_SIZE_AT:BODY_SIZE_END], self.made_after, old[self.end :]))


class Stretch:
    """Neighbours with the same targets, which are published together."""

    __slots__ = ("answered", "contents", "key", "queues")

    def __init__(self, made: bytes, key: bytes, queues: tuple[AnyQueue, ...], answered: bool) -> None:
        self.contents = [made]
        self.key = key
        self.queues = queues
        self.answered = answered  # It goes to addresses of direct reply-to.

    def goes_to(self, key: bytes, queues: tuple[AnyQueue, ...], answered: bool) -> bool:
        return self.key == key and self.queues == queues and self.answered == answered


class DeadLetter(Pending):
    """The messages lo..hi - 1 of a batch, published to the dead-letter exchange and not confirmed yet."""

    __slots__ = ("batch", "held", "hi", "lo", "queue", "reason", "void")

    def __init__(
        self, publisher: DeadLetterPublisher, queue: Queue, batch: Batch, lo: int, hi: int, reason: str, held: bool
    ) -> None:
        super().__init__(publisher, lo, hi - 1)
        self.queue = queue
        self.batch = batch
        self.lo = lo
        self.hi = hi
        self.reason = reason
        self.held = held  # It comes from `retry`.
        self.void = False  # Its messages are ready in their queue again, whether the targets confirm or not.


class DeadLetterPublisher:
    """Publishes the dead-lettered messages of one node's queues."""

    who = "dead letters"  # The publisher's name in the journals of the target queues.

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.open: dict[DeadLetter, None] = {}  # Not confirmed by all targets yet.
        self.retry = DeadLetterRetry(self)
        self.left = WORK_MAX
        self.sent = 0
        self.dropped = 0  # Refused by a target, and not kept.
        # Messages by reason, whether their queue is a quorum queue, and whether they are kept until confirmed.
        self.by_reason: dict[tuple[str, bool, bool], int] = {}
        self.kept_safe = {False: 0, True: 0}  # Messages kept until confirmed, and confirmed; by quorum queue or not.
        self.logged_unroutable: dict[tuple[int, str | None, str | None, bool], None] = {}  # Already logged.

    def begin_turn(self, is_crowded: bool) -> None:
        """Give this turn its budget, and have those published that wait. `is_crowded`: too much waits for the disk."""
        self.left = 0 if is_crowded and self.retry.waiting else WORK_MAX
        self.retry.begin_turn()

    def send(self, queue: Queue, batch: Batch, lo: int, hi: int, reason: str) -> None:
        """Dead-letter messages that have left `ready` and are not unacknowledged; settled when targets have them."""
        self._count(queue, reason, hi - lo)
        if self.left > 0 and not self.retry.has_new(queue):
            _, lo = self._send(queue, batch, lo, hi, reason, held=False, tried=False)
        if lo < hi:
            self.retry.add_new(queue, batch, lo, hi, reason)

    def send_held(
        self, queue: Queue, batch: Batch, lo: int, hi: int, reason: str, tried: bool, least: int
    ) -> tuple[int, int]:
        """Likewise for messages from `retry`: as many as the turn has room for, and `least` whether it has or not.
        Returns in how many publishes, some of which may be answered already, and up to which message."""
        return self._send(queue, batch, lo, hi, reason, held=True, tried=tried, least=least)

    def send_unread(self, queue: Queue, first: int, last: int, reason: str) -> None:
        """Likewise for messages whose contents are in the log only."""
        self._count(queue, reason, last - first + 1)
        self.retry.add_unread(queue, first, last, reason)

    def _count(self, queue: Queue, reason: str, count: int) -> None:
        kind = reason, is_quorum(queue.spec.arguments), queue.rules.keeps_dead
        self.by_reason[kind] = self.by_reason.get(kind, 0) + count

    def _send(
        self, queue: Queue, batch: Batch, lo: int, hi: int, reason: str, *, held: bool, tried: bool, least: int = 1
    ) -> tuple[int, int]:
        keeps = queue.rules.keeps_dead
        if not self.has_exchange(queue):
            if keeps and queue.rules.dead_letter_exchange is not None:
                self.log_unroutable(queue)
                self.retry.add_refused(queue, batch, lo, hi, reason)
            else:
                queue.settle_unserved(batch, lo, hi, reason)
            return 0, hi
        stretches, replies, end = self._stretches(queue, batch, lo, hi, reason, least)
        last = lo
        for stretch in stretches:
            first, last = last, last + len(stretch.contents)
            letter = DeadLetter(self, queue, batch, first, last, reason, held)
            self.open[letter] = None
            if keeps and not stretch.queues and not stretch.answered:
                letter.mark_refused()
                self.log_unroutable(queue)
            self._post(stretch.queues, stretch.contents, stretch.key, batch.kinds[first:last], letter)
        for made, key, _, addresses in replies if not tried else ():
            self.broker.replies.answer(None, addresses, key, made)
        return len(stretches), end

    def _stretches(
        self, queue: Queue, batch: Batch, lo: int, hi: int, reason: str, least: int
    ) -> tuple[list[Stretch], list[Way], int]:
        """Make dead letters of a batch: `least`, or as many as the turn has room for; neighbours with the same targets
        together. The targets are known only when the headers were read. A queue that may reject publishes gets
        them one by one: see `Route.is_plain`. Also returns those with addresses of direct reply-to, and up to where."""
        assert queue.rules.dead_letter_exchange is not None
        varies = self.broker.vhosts[queue.spec.vhost].router.varies(queue.rules.dead_letter_exchange)
        stretches: list[Stretch] = []
        replies: list[Way] = []
        alike: Alike | None = None
        is_single = False
        contents, keys, at = batch.contents, batch.keys, lo
        while at < hi and (self.left > 0 or at - lo < least):
            old, key = contents[at], keys[at]
            made = None if alike is None else alike.make(old, key)
            if made is not None:
                self.left -= WORK_ALIKE
                stretches[-1].contents.append(made)
            else:
                self.left -= WORK_NEW
                way = made, new_key, queues, addresses = self._way(queue, old, key, reason)
                if addresses:
                    replies.append(way)
                last = stretches[-1] if stretches else None
                if last is not None and not is_single and last.goes_to(new_key, queues, bool(addresses)):
                    last.contents.append(made)
                else:
                    stretches.append(Stretch(made, new_key, queues, bool(addresses)))
                    is_single = any(target.rules.rejects for target in queues)
                is_last = at + 1 == hi
                alike = None if is_last or varies or is_single or addresses else Alike(old, key, made)
            at += 1
        return stretches, replies, at

    def send_refused(self, queue: AnyQueue, contents: Sequence[bytes], keys: Sequence[bytes], kind: int) -> None:
        """Dead-letter publishes that the queue has rejected because it was full."""
        if not self.has_exchange(queue):
            return
        for one, key in zip(contents, keys, strict=True):
            made, new_key, queues, addresses = self._way(queue, one, key, MAXLEN)
            self._post(queues, [made], new_key, bytearray((kind,)), None)
            if addresses:
                self.broker.replies.answer(None, addresses, new_key, made)

    def log_unroutable(self, queue: Queue) -> None:
        """Log that messages which must be kept are routed to no queue, once for each exchange and key."""
        rules = queue.rules
        way = queue.spec.id, rules.dead_letter_exchange, rules.dead_letter_key, self.has_exchange(queue)
        if way in self.logged_unroutable:
            return
        if len(self.logged_unroutable) >= LOGGED_MAX:
            self.logged_unroutable.clear()
        self.logged_unroutable[way] = None
        self.broker.notes.dead_letters_unroutable(queue.spec, *way[1:])

    def has_exchange(self, queue: AnyQueue) -> bool:
        return (queue.spec.vhost, queue.rules.dead_letter_exchange) in self.broker.metadata.exchanges

    def _way(self, queue: AnyQueue, old: bytes, key: bytes, reason: str) -> Way:
        rules = queue.rules
        assert rules.dead_letter_exchange is not None
        made, keys, headers = self._make(queue, old, key, reason)
        vhost = self.broker.vhosts[queue.spec.vhost]
        queues = vhost.route(rules.dead_letter_exchange, keys, made)
        if reason != REJECTED and queues:
            deaths = headers["x-death"].value
            queues = tuple(one for one in queues if not is_cycle(one.spec.name, deaths))
        addresses = [] if rules.dead_letter_exchange else [one for one in keys if one.startswith(PREFIX)]
        return made, _short(rules.dead_letter_exchange) + _short(keys[0]), queues, addresses

    def _make(self, queue: AnyQueue, old: bytes, key: bytes, reason: str) -> tuple[bytes, list[str], Table]:
        """Returns the content to publish, the keys it is routed by, and its headers."""
        properties = decode_content(old, HEADER_AT)
        headers = properties.headers or {}
        middle = 1 + key[0]
        came_from, came_by = _text(key[1:middle]), _text(key[middle + 1 :])
        copies = _routes(headers.get("CC"))
        if queue.rules.dead_letter_key is not None:
            keys = [queue.rules.dead_letter_key]
            headers.pop("CC", None)
        else:
            keys = [came_by, *copies]
        death: Table = {
            "reason": Field("S", reason),
            "queue": Field("S", queue.spec.name),
            "time": Field("T", self.broker.wall_ms // 1000),
            "exchange": Field("S", came_from),
            "routing-keys": Field("A", [Field("S", each) for each in (came_by, *copies)]),
        }
        if properties.expiration is not None:
            death["original-expiration"] = Field("S", properties.expiration)
        note_death(headers, death)
        headers = dict(sorted(headers.items()))  # As RabbitMQ leaves them.
        properties.headers, properties.expiration = headers, None
        return with_header(old, encode(properties, body_size(old, HEADER_AT))), keys, headers

    def _post(
        self, queues: Sequence[AnyQueue], contents: list[bytes], key: bytes, kinds: bytearray, letter: DeadLetter | None
    ) -> None:
        """Publish messages with the same targets. Their kinds may differ: each kind is a publish of its own."""
        self.sent += len(contents)
        kinds = kinds.translate(_LETTER_KIND)
        start = 0
        while start < len(contents):
            end = start + 1
            while end < len(contents) and kinds[end] == kinds[start]:
                end += 1
            some, kind = contents[start:end], kinds[start]
            size = sum(map(len, some)) + MESSAGE_OVERHEAD * len(some)
            if len(queues) > 1 and kind & PERSISTENT:
                kind |= SHARED
            for queue in queues:
                queue.enqueue(some, [key] * len(some), kind, size, letter)
            start = end
        if letter is not None and not letter.waiting:
            self.on_complete(letter)

    def on_complete(self, pending: Pending) -> None:
        """All targets have confirmed or refused."""
        assert isinstance(pending, DeadLetter)
        queue = pending.queue
        self.open.pop(pending, None)
        if queue.deleted or pending.void:
            return
        if pending.refused and queue.rules.keeps_dead:
            self.retry.add_refused(queue, pending.batch, pending.lo, pending.hi, pending.reason)
        else:
            if pending.refused:
                self.dropped += pending.count
            elif queue.rules.keeps_dead:
                self.kept_safe[is_quorum(queue.spec.arguments)] += pending.count
            kind = "dropped" if pending.refused else "dead-lettered"
            queue.settle_unserved(pending.batch, pending.lo, pending.hi, pending.reason, kind)
        if pending.held:
            self.retry.on_fate(queue)

    def held(self, queue: Queue) -> Iterator[tuple[Batch, int, int]]:
        """Yield messages of a queue whose dead letters are not safe, so that they are not settled, as far as in
        memory."""
        for letter in self.open:
            if letter.queue is queue and not letter.void:
                yield letter.batch, letter.lo, letter.hi
        yield from self.retry.held(queue)

    def take_back(self, queue: Queue) -> None:
        """Put messages that their targets have not confirmed back into their queue, which moves to another node."""
        entries = self.retry.take(queue)
        for letter in self.open:
            if letter.queue is queue and not letter.void:
                letter.void = True
                entries.append(Span(letter.batch, letter.lo, letter.hi))
        if entries:
            queue.put_back_dead_letters(entries)

    def try_again(self) -> None:
        """Called now and then: publish those again whose targets were full, or out of reach."""
        self.retry.tick()


_LETTER_KIND: Final = bytes(LASTING_KIND[kind] & ~REDELIVERED & PERSISTENT for kind in range(256))


def note_death(headers: Table, death: Table) -> None:
    """Add a death to the headers of a message, as its latest."""
    known = headers.get("x-death")
    is_known = known is not None and known.kind == "A"
    if known is None:
        headers["x-first-death-reason"] = death["reason"]
        headers["x-first-death-queue"] = death["queue"]
        headers["x-first-death-exchange"] = death["exchange"]
    deaths = _merged(known.value) if known is not None and is_known else []
    same = next((one for one in deaths if one.kind == "F" and _place(one) == _place(Field("F", death))), None)
    others = [one for one in deaths if one is not same]
    count = 1 if same is None else min(_count(same) + 1, COUNT_MAX)  # A publisher may have made it up.
    latest = {**(death if same is None else same.value), "count": Field("l", count)}
    if is_known:  # Only then RabbitMQ sorts it.
        latest = dict(sorted(latest.items()))
    else:
        latest = {"count": latest["count"], **latest}
    headers["x-death"] = Field("A", [Field("F", latest), *others])


def _merged(deaths: Sequence[Field]) -> list[Field]:
    """One entry for each queue and reason: the first, with its own count or, if it has none, the number of entries.

    Brokers before RabbitMQ 3.5.2 wrote an entry for each death, and clients make up what they like.
    """
    if len(deaths) < 2:
        return list(deaths)
    places = [_place(one) for one in deaths]
    times = Counter(places)
    merged = []
    for one, place in zip(deaths, places, strict=True):
        entries = times.pop(place, 0)
        if one.kind != "F":
            merged.append(one)
        elif entries:
            merged.append(one if "count" in one.value else Field("F", {"count": Field("l", entries), **one.value}))
    return merged


def _place(one: Field) -> tuple[str, ...]:
    """Queue and reason of an entry, to be compared by their values. Field types do not matter to RabbitMQ."""
    if one.kind != "F":
        return ()
    found = [one.value.get(name) for name in ("queue", "reason")]
    return tuple("" if field is None else repr(_plain(field.value)) for field in found)


def _plain(value: object) -> object:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


def _count(one: Field) -> int:
    count = one.value.get("count")
    return count.value if count is not None and isinstance(count.value, int) else 1


def is_cycle(queue: str, deaths: Sequence[Field]) -> bool:
    """Returns whether a message was dead-lettered by this queue before, and has not been rejected since."""
    for death in deaths:
        table = death.value if death.kind == "F" else {}
        if table.get("reason") == Field("S", REJECTED):
            return False
        if table.get("queue") == Field("S", queue):
            return True
    return False


def _routes(field: Field | None) -> list[str]:
    if field is None or field.kind != "A":
        return []
    return [each.value for each in field.value if each.kind == "S"]


def _short(text: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    return bytes((len(data),)) + data


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
