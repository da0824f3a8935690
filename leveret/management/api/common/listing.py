"""Lists: which rows, in which order, how many of them, and which of their columns. RabbitMQ's words, and its texts.

A list may have a hundred thousand rows, and an answer all of them. So rows are chosen and ordered by what is at hand,
in slices; only those that are shown are asked for in full, some at a time, and sent before the next are asked for.

A name is looked for by a pattern of the client's, in every row; see `leveret.base.safe_regex`. One look may take a
while, so the clock is asked after each.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from leveret.base.safe_regex import BadPattern, filter_of
from leveret.management.http.http_messages import Buffer, Problem, Response, bad_request
from leveret.node.admin.statistics.peer_stats import ROWS_MAX
from leveret.node.system.time_slices import TimeSlices, in_order, picked

if TYPE_CHECKING:
    from leveret.management.http.http_messages import Request

PAGE_SIZE: Final = 100
PAGE_SIZE_MAX: Final = 500
PATTERN_CHARACTERS_MAX: Final = 1_000
SORTED_MAX: Final = 20_000  # Rows that have to be fetched in full to be sorted.
STREAMS_MAX: Final = 8  # Long answers at a time.
AGE_S_MAX: Final = 90_000
WINDOWS: Final = (("lengths", "lengths"), ("msg_rates", "messages"), ("data_rates", "data"), ("node_stats", "node"))

_T = TypeVar("_T")
Row = dict[str, Any]
Fetch = Callable[[Sequence[_T]], Awaitable[list[Row]]]


class Query(NamedTuple):
    """Columns, order, filter and page that a request asks of a list."""

    columns: list[list[str]] | None = None
    sort: list[str] | None = None
    reverse: bool = False
    page: int | None = None
    size: int = PAGE_SIZE
    matches: Callable[[str], bool] | None = None

    def shown(self, row: Row) -> Row:
        """The columns that are wanted."""
        return row if self.columns is None else _chosen(row, self.columns)


def query_of(request: Request) -> Query:
    """Raises Problem."""
    page, size = _number(request, "page"), _number(request, "page_size")
    if page is None and size is not None:
        page = 1
    if (page is not None and page < 1) or (size is not None and not 1 <= size <= PAGE_SIZE_MAX):
        told = f"page number {page}, page size {'undefined' if size is None else size}"
        raise Problem(400, "invalid_pagination_parameters", f"Invalid pagination parameters: {told}")
    columns, sort = request.asked("columns"), request.asked("sort")
    return Query(
        None if not columns else [name.split(".") for name in columns.split(",")],
        None if not sort else sort.split("."),
        request.asked("sort_reverse") == "true",
        page,
        PAGE_SIZE if size is None else size,
        _matcher(request) if page is not None else None,
    )


def _number(request: Request, name: str) -> int | None:
    text = request.asked(name)
    if not text:
        return None
    if re.fullmatch(r"-?[0-9]{1,9}", text, re.ASCII) is None:
        raise bad_request("Pagination parameters are invalid")
    return int(text)


def _matcher(request: Request) -> Callable[[str], bool] | None:
    name = request.asked("name")
    if not name:
        return None
    if request.asked("use_regex") != "true":
        wanted = name.lower()
        return lambda text: wanted in text.lower()
    if len(name) > PATTERN_CHARACTERS_MAX:
        raise bad_request(f"a pattern has at most {PATTERN_CHARACTERS_MAX} characters")
    try:
        return filter_of(name, ignore_case=True).finds
    except BadPattern as error:
        text = f"Pagination parameters are invalid: name is no regular expression that could be used: {error}"
        raise bad_request(text) from None


def past_of(request: Request) -> dict[str, list[int]]:
    """Return age and step in seconds of each chart that the request asks for; ignores what is no number."""
    found = {}
    for theirs, ours in WINDOWS:
        age, step = request.asked(f"{theirs}_age") or "", request.asked(f"{theirs}_incr") or ""
        if age.isdecimal() and step.isdecimal() and 0 < int(step) <= int(age) <= AGE_S_MAX and len(age) < 9:
            found[ours] = [int(age), max(int(step), int(age) // 500, 1)]
    return found


def _chosen(row: Row, columns: list[list[str]]) -> Row:
    found: Row = {}
    for path in columns:
        value: Any = row
        for word in path:
            if not isinstance(value, dict) or word not in value:
                break
            value = value[word]
        else:
            there = found
            for word in path[:-1]:
                there = there.setdefault(word, {})
            there[path[-1]] = value
    return found


def value_of(row: Any, path: list[str]) -> Any:
    for word in path:
        row = row.get(word) if isinstance(row, dict) else None
    return row


def sort_key(value: Any) -> tuple[int, Any]:
    """Values of all types have an order, which is Erlang's: numbers, words, texts, the rest; nothing is the first."""
    if value is None:
        return (0, 0)
    if isinstance(value, bool):
        return (2, value)
    if isinstance(value, int | float):
        return (1, value)
    if isinstance(value, str):
        return (3, value)
    return (4, json.dumps(value, sort_keys=True))


# -- From candidates to an answer ----------------------------------------------------------------------------------


class Listing:
    """Makes answers; one for all lists, so that long ones take turns."""

    def __init__(self) -> None:
        self.streams = asyncio.Semaphore(STREAMS_MAX)

    async def choose(
        self,
        query: Query,
        there: list[_T],
        name: Callable[[_T], str],
        order: Callable[[_T], Any],
        figures: Callable[[list[_T], list[str]], Awaitable[Callable[[_T], Any]]],
        is_ordered: bool = False,
    ) -> tuple[list[_T], int, int]:
        """Return the items to be shown, the number of all, and the number after the filter.

        `figures` gets the values of a column for the filtered ones; `is_ordered`: they are sorted by name already.
        """
        total = len(there)
        matches = query.matches
        if matches is not None:
            there = await picked(there, lambda one: matches(name(one)), steps=1)
        filtered = len(there)
        first, most = 0, None
        if query.page is not None:
            first = (query.page - 1) * query.size
            if query.page > 1 and first >= filtered:
                told = f"page: {query.page} page size: {query.size}, len: {filtered}"
                raise Problem(400, "page_out_of_range", f"Page out of range, {told}")
            most = first + query.size
        if is_ordered and query.sort in (None, ["name"]):
            found = (there[::-1] if query.reverse else there)[:most]
        elif query.sort is None or query.sort == ["name"]:
            by_name = order if query.sort is None else lambda one: (name(one), order(one))
            found = await in_order(there, by_name, query.reverse, most)
        else:
            value = await figures(there, query.sort)
            by_value: Callable[[_T], Any] = lambda one: (*sort_key(value(one)), order(one))  # noqa: E731
            found = await in_order(there, by_value, query.reverse, most)
        return found[first:], total, filtered

    async def answer(self, query: Query, chosen: list[_T], total: int, filtered: int, fetch: Fetch[_T]) -> Response:
        """The rows of those that were chosen."""
        head, tail = b"[", b"]"
        if query.page is not None:
            counts = {"filtered_count": filtered, "item_count": len(chosen), "items": []}
            pages = -(-filtered // query.size)
            rest = {"page": query.page, "page_count": pages, "page_size": query.size, "total_count": total}
            head, tail = _around({**counts, **rest})
        if len(chosen) <= ROWS_MAX:
            rows = await fetch(chosen) if chosen else []
            return Response(200, [head, await _joined(query, rows), tail])
        return Response(200, self._stream(query, chosen, head, tail, fetch))

    async def _stream(
        self, query: Query, chosen: list[_T], head: bytes, tail: bytes, fetch: Fetch[_T]
    ) -> AsyncIterator[Buffer]:
        async with self.streams:
            before = head
            for at in range(0, len(chosen), ROWS_MAX):
                for row in await fetch(chosen[at : at + ROWS_MAX]):
                    yield before + _encoded(query.shown(row))
                    before = b","
                await asyncio.sleep(0)
            yield head + tail if before is head else tail

    async def of_rows(self, query: Query, rows: AsyncIterator[Row], is_paged: bool = True) -> Response:
        """An answer of rows that come one by one: as they come, unless they have to be sorted."""
        if query.sort is None and (query.page is None or not is_paged):
            first = []
            async for row in rows:
                first.append(row)
                if len(first) > ROWS_MAX:
                    return Response(200, self._flow(query, first, rows))
            return Response(200, [b"[", await _joined(query, first), b"]"])
        found = []
        async for row in rows:
            found.append(row)
            if len(found) > SORTED_MAX:
                raise bad_request(f"there are more than {SORTED_MAX} rows, too many to be sorted")
        path = query.sort or []
        found = await in_order(found, lambda row: sort_key(value_of(row, path)) if path else (0, 0), query.reverse)
        chosen, total, filtered = found, len(found), len(found)
        if query.page is not None and is_paged:
            plain = query._replace(sort=None, reverse=False)
            chosen, total, filtered = await self.choose(plain, found, _name, lambda row: 0, _no_figures)
        else:
            query = query._replace(page=None)
        return await self.answer(query, chosen, total, filtered, _themselves)

    async def _flow(self, query: Query, first: list[Row], rows: AsyncIterator[Row]) -> AsyncIterator[Buffer]:
        async with self.streams:
            slices = TimeSlices()
            yield b"[" + await _joined(query, first)
            async for row in rows:
                yield b"," + _encoded(query.shown(row))
                if slices.is_over():
                    await slices.rest()
            yield b"]"


def _name(row: Row) -> str:
    return str(row.get("name", ""))


async def _themselves(rows: Sequence[Row]) -> list[Row]:
    return list(rows)


async def _no_figures(rows: list[Row], path: list[str]) -> Callable[[Row], Any]:
    return lambda row: 0


async def figures_by_rows(there: Sequence[_T], path: list[str], fetch: Fetch[_T]) -> dict[_T, Any]:
    """One column of all of these, where it can only be had with the whole row. Raises Problem if they are too many."""
    if len(there) > SORTED_MAX:
        raise bad_request(f"there are more than {SORTED_MAX} rows, too many to be sorted by {'.'.join(path)}")
    found: dict[_T, Any] = {}
    for at in range(0, len(there), ROWS_MAX):
        some = there[at : at + ROWS_MAX]
        for one, row in zip(some, await fetch(some), strict=True):
            found[one] = value_of(row, path)
    return found


def _around(page: Row) -> tuple[bytes, bytes]:
    """A page without its items: what stands before them, and what behind."""
    head, _, tail = _encoded(page).partition(b"[]")
    return head + b"[", b"]" + tail


async def _joined(query: Query, rows: list[Row]) -> bytes:
    """A row takes some tens of microseconds to encode."""
    return b",".join([_encoded(query.shown(row)) async for row in TimeSlices(steps=4).each(rows)])


def _encoded(row: Any) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode("ascii")


def unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
