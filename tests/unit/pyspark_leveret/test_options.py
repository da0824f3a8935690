"""Options: read, checked, refused with a text that helps."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_leveret.options import EARLIEST, LATEST, Access, BadOption, Options, Positions

QUEUE = {"subscribe": "orders"}


def refusal(given: dict[str, str], role: str = "batch") -> str:
    with pytest.raises(BadOption) as caught:
        options = Options(given)
        if role == "sink":
            options.sink()
        else:
            options.source(streaming=role == "stream")
    return str(caught.value)


def test_defaults_of_a_batch() -> None:
    found = Options({"Subscribe": " orders , events,orders"}).source(streaming=False)
    assert (found.queues, found.pattern) == (("orders", "events"), None)
    assert (found.starting, found.ending) == (Positions(EARLIEST), Positions(LATEST))
    assert found.access == Access(("127.0.0.1",), "/", "guest", "guest")
    assert (found.min_partitions, found.fail_on_data_loss, found.max_offsets) == (1, True, None)


@pytest.mark.parametrize(
    ("by", "first", "after"),
    [("", 8, 5), ("", 1, 0), ("ByTimestamp", 2000, 1999)],
)
def test_a_range_that_ends_before_it_begins(by: str, first: int, after: int) -> None:
    said = {f"startingOffsets{by}": f'{{"orders": {first}}}', f"endingOffsets{by}": f'{{"orders": {after}}}'}
    text = f"option 'startingOffsets{by}' is above 'endingOffsets{by}' for queue 'orders'"
    assert text in refusal({**QUEUE, **said})


@pytest.mark.parametrize(
    ("first", "after"),
    [('{"orders": 5}', '{"orders": 5}'), ('{"orders": -2}', '{"orders": 0}'), ("latest", "latest"),
     ('{"orders": 5}', '{"orders": -1}'), ('{"orders": -1}', '{"orders": 5}')],
)  # fmt: skip
def test_a_range_that_may_be_empty(first: str, after: str) -> None:
    Options({**QUEUE, "startingOffsets": first, "endingOffsets": after}).source(streaming=False)


def test_a_stream_begins_with_what_comes_and_a_lease_with_what_is_there() -> None:
    assert Options(QUEUE).source(streaming=True).starting == Positions(LATEST)
    leased = Options({**QUEUE, "lease": "job"}).source(streaming=True)
    assert (leased.starting, leased.lease, leased.lease_timeout_ms) == (Positions(EARLIEST), "job", 86_400_000)


@pytest.mark.parametrize(
    ("text", "positions"),
    [
        ("earliest", Positions(EARLIEST)),
        ("Latest", Positions(LATEST)),
        ('{"orders": 23, "events": -2}', Positions(LATEST, {"orders": 23, "events": -2})),
    ],
)
def test_starting_offsets(text: str, positions: Positions) -> None:
    assert Options({"subscribe": "orders,events", "startingOffsets": text}).source(streaming=True).starting == positions


def test_offsets_by_timestamp() -> None:
    given = {**QUEUE, "startingOffsetsByTimestamp": '{"orders": 5}', "endingOffsetsByTimestamp": '{"orders": 9}'}
    found = Options(given).source(streaming=False)
    assert found.starting == Positions(EARLIEST, {}, {"orders": 5})
    assert found.ending == Positions(LATEST, {}, {"orders": 9})


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("100k", 102_400), ("8 MB", 8 << 20), ("1GiB", 1 << 30), ("7b", 7)]
)
def test_sizes(text: str, size: int) -> None:
    assert Options({**QUEUE, "maxBytesPerTrigger": text}).source(streaming=True).max_bytes == size


@pytest.mark.parametrize(
    ("text", "ms"),
    [("1500", 1500), ("2 ms", 2), ("90 minutes", 5_400_000), ("12h", 43_200_000), ("1 day", 86_400_000), ("3s", 3_000),
     ("5 m", 300_000), ("4 milliseconds", 4)],
)  # fmt: skip
def test_times(text: str, ms: int) -> None:
    given = {**QUEUE, "lease": "job", "leaseTimeout": text}
    assert Options(given).source(streaming=True).lease_timeout_ms == ms


@pytest.mark.parametrize(
    ("given", "role", "text"),
    [
        ({**QUEUE, "maxOffsetsPerTriger": "5"}, "stream", "did you mean 'maxOffsetsPerTrigger'?"),
        ({**QUEUE, "zzz": "5"}, "stream", "unknown option 'zzz'; there are servers, vhost"),
        ({}, "batch", "give one of the options 'subscribe'"),
        ({**QUEUE, "subscribePattern": "o.*"}, "batch", "give one of the options 'subscribe'"),
        ({"subscribe": " , "}, "batch", "names no queue"),
        ({"subscribePattern": "("}, "batch", "not a regular expression"),
        ({**QUEUE, "path": "x"}, "batch", "load() takes no path"),
        ({**QUEUE, "lease": "job"}, "batch", "'lease' means nothing for a batch source, only for spark.readStream"),
        ({**QUEUE, "endingOffsets": "latest"}, "stream", "'endingOffsets' means nothing for a streaming source"),
        ({**QUEUE, "exchange": "e"}, "stream", "'exchange' means nothing for a streaming source, only for a sink"),
        ({**QUEUE, "leaseTimeout": "5"}, "stream", "needs option 'lease'"),
        ({**QUEUE, "lease": "x" * 129}, "stream", "1 to 128 bytes"),
        ({**QUEUE, "lease": "job", "startingOffsets": "latest"}, "stream", "read from its head"),
        ({**QUEUE, "lease": "job", "leaseTimeout": "soon"}, "stream", "not 'soon'"),
        ({**QUEUE, "minPartitions": "0"}, "batch", "above 0, not '0'"),
        ({**QUEUE, "maxBytesPerTrigger": "much"}, "stream", "not 'much'"),
        ({**QUEUE, "failOnDataLoss": "maybe"}, "batch", "'true' or 'false', not 'maybe'"),
        ({**QUEUE, "startingOffsets": "first"}, "batch", "'earliest', 'latest' or JSON like"),
        ({**QUEUE, "startingOffsets": '{"orders": "5"}'}, "batch", "JSON like"),
        ({**QUEUE, "startingOffsets": '{"orders": -3}'}, "batch", "JSON like"),
        ({**QUEUE, "startingOffsets": '{"order": 3}'}, "batch", "names queue 'order', which 'subscribe' does not"),
        ({**QUEUE, "endingOffsetsByTimestamp": '{"order": 3}'}, "batch", "names queue 'order'"),
        ({**QUEUE, "startingOffsetsByTimestamp": "[1]"}, "batch", "milliseconds since 1970"),
        ({**QUEUE, "startingOffsets": "latest", "startingOffsetsByTimestamp": "{}"}, "batch", "give one of"),
        ({**QUEUE, "endingOffsets": "earliest"}, "batch", "cannot be 'earliest'"),
        ({**QUEUE, "servers": ""}, "batch", "names no server"),
        ({**QUEUE, "servers": "ftp://h"}, "batch", "not what is spoken with here"),
        ({**QUEUE, "servers": "h:port"}, "batch", "h:port"),
        ({**QUEUE, "servers": "http://u:p@h"}, "batch", "holds a password"),
        ({**QUEUE, "servers": "http://h/vhost"}, "batch", "is no server"),
        ({**QUEUE, "servers": "h,amqp://h"}, "stream", "mixes amqp://"),
        ({**QUEUE, "servers": "amqp://h", "lease": "job"}, "stream", "means nothing for a source that speaks AMQP"),
        ({**QUEUE, "keyfile": "k"}, "batch", "needs option 'certfile'"),
        ({"servers": "http://h:15672", "routingKey": "k"}, "sink", "not what is spoken with here: host:port, amqp://"),
        ({**QUEUE, "routingKey": "k"}, "sink", "'subscribe' means nothing for a sink"),
        ({"path": "x"}, "sink", "save() takes no path"),
    ],
)  # fmt: skip
def test_refusals(given: dict[str, str], role: str, text: str) -> None:
    assert text in refusal(given, role)


def test_a_sink() -> None:
    given = {"exchange": "events", "routingkey": "a.b", "mandatory": "false", "servers": "h1,amqps://h2,[::1]:99"}
    found = Options({**given, "checkpointLocation": "/x", "user": "me", "password": "secret"}).sink()
    assert (found.exchange, found.routing_key, found.mandatory, found.sort_rows) == ("events", "a.b", False, False)
    assert found.access.amqp_addresses() == [("h1", 5672, False), ("h2", 5671, True), ("::1", 99, False)]
    assert "secret" not in repr(found)


def test_tls(tmp_path: Path) -> None:
    assert Access().tls() is None
    with pytest.raises(BadOption, match="cannot use the TLS files"):
        Access(cafile=str(tmp_path / "missing")).tls()
    assert Access(("h",), cafile="ca").amqp_addresses() == [("h", 5671, True)]


def test_who_publishes_which_batch() -> None:
    found = Options({"producer": "invoices", "producerBatch": "7"}).sink()
    assert (found.producer, found.producer_batch) == ("invoices", 7)
    assert (Options({}).sink().producer, Options({}).sink().producer_batch) == (None, 0)
    assert "go together" in refusal({"producer": "invoices"}, "sink")
    assert "go together" in refusal({"producerBatch": "7"}, "sink")
    assert "1 to 100 bytes" in refusal({"producer": "x" * 101, "producerBatch": "7"}, "sink")
    for batch in ("-1", "seven", str(1 << 31), "²"):
        assert "a whole number from 0 to 2147483647" in refusal({"producer": "i", "producerBatch": batch}, "sink")
    with pytest.raises(BadOption, match="means nothing for a streaming sink"):
        Options({"producer": "invoices", "producerBatch": "7"}).sink(streaming=True)
    assert "means nothing for a batch source" in refusal({**QUEUE, "producer": "invoices"})
