"""A link: deliveries become publishes, confirms become acknowledgements, and a broker that breaks the rules ends it."""

from __future__ import annotations

import pytest

from leveret.client.machine import BundleDelivery, Delivery, publish_prefix
from leveret.metadata.shovel.parameters import AckMode
from leveret.protocol.bundles import Bundle, packed, read_publish
from leveret.protocol.frames import content, split
from leveret.protocol.origins import MARK, source_of, take_origin, with_origins
from leveret.protocol.properties import Properties, encode
from leveret.shovel.link import Link, LinkFault, Settlement, Target

ROUTE = b"\x01x\x01k"
SOURCE = source_of(b"a" * 32, 7, 9)


def message(body: bytes = b"hello") -> bytes:
    return content(encode(Properties(), len(body)), body, 0)


def deliveries(first: int, count: int, route: bytes = ROUTE, body: bytes = b"hello") -> list[Delivery]:
    return [Delivery(tag, False, route, message(body)) for tag in range(first, first + count)]


def link(mode: AckMode = "on-confirm", quota: int | None = None, target: Target | None = None) -> Link:
    return Link(mode, target or Target("", "q"), quota=quota)


def test_a_message_is_acknowledged_when_it_is_confirmed() -> None:
    one = link()
    assert one.on_deliveries(deliveries(1, 2)) == [publish_prefix(b"\0\x01q", False), message()] * 2
    assert (one.take_settlements(), one.pending, one.forwarded) == ([], 2, 0)
    one.on_confirm(2, multiple=True, refused=False)
    assert one.take_settlements() == [Settlement(2, True, False)]
    assert (one.pending, one.forwarded) == (0, 2)
    assert one.take_settlements() == []


def test_confirms_out_of_order() -> None:
    one = link()
    one.on_deliveries(deliveries(1, 5))
    for number in (3, 1):
        one.on_confirm(number, multiple=False, refused=False)
    assert (one.pending, one.forwarded, one.confirmed_through) == (3, 2, 1)
    one.on_confirm(4, multiple=True, refused=False)
    assert (one.pending, one.forwarded, one.confirmed_through, one.confirmed_ahead) == (1, 4, 4, set())
    one.on_confirm(5, multiple=False, refused=False)
    assert one.pending == 0


@pytest.mark.parametrize(
    ("exchange", "key", "route"),
    [(None, None, ROUTE), ("y", None, b"\x01y\x01k"), ("y", "z", b"\x01y\x01z"), (None, "z", b"\x01x\x01z")],
)
def test_where_messages_go(exchange: str | None, key: str | None, route: bytes) -> None:
    pieces = link(target=Target(exchange, key)).on_deliveries(deliveries(1, 1))
    assert pieces[0] == publish_prefix(route, False)


def test_on_publish_and_no_ack() -> None:
    published = link("on-publish")
    published.on_deliveries(deliveries(1, 3))
    assert published.take_settlements() == [Settlement(3, True, False)]
    assert (published.forwarded, published.pending, published.acknowledges) == (3, 0, True)
    blind = link("no-ack")
    blind.on_deliveries(deliveries(1, 3))
    assert (blind.take_settlements(), blind.forwarded, blind.acknowledges) == ([], 3, False)


def test_a_quota_is_not_exceeded_and_ends_with_its_last_confirm() -> None:
    one = link(quota=3)
    assert len(one.on_deliveries(deliveries(1, 5))) == 6
    assert one.on_deliveries(deliveries(6, 2)) == []
    assert (one.remaining, one.is_done) == (3, False)
    one.on_confirm(2, multiple=True, refused=False)
    assert (one.remaining, one.is_done) == (1, False)
    one.on_confirm(3, multiple=False, refused=False)
    assert (one.remaining, one.is_done) == (0, True)
    assert [one.tag for one in one.take_settlements()] == [2, 3]


def test_a_quota_without_acknowledgements_asks_for_them_all_the_same() -> None:
    one = link("no-ack", quota=1)
    assert one.acknowledges
    one.on_deliveries(deliveries(1, 2))
    assert one.take_settlements() == [Settlement(1, True, False)]
    assert one.is_done


def test_a_refused_message_goes_back_and_the_link_rests() -> None:
    one = link()
    one.on_deliveries(deliveries(1, 2))
    one.on_confirm(1, multiple=False, refused=True)
    assert one.take_settlements() == [Settlement(1, False, True)]
    assert (one.is_resting, one.forwarded, one.pending) == (True, 0, 1)
    one.on_rested()
    assert not one.is_resting
    counted = link(quota=2)
    counted.on_deliveries(deliveries(1, 2))
    with pytest.raises(LinkFault, match="full"):
        counted.on_confirm(1, multiple=False, refused=True)


@pytest.mark.parametrize("tag", [0, 2, 7])
def test_tags_out_of_order(tag: int) -> None:
    with pytest.raises(LinkFault, match="out of order"):
        link().on_deliveries(deliveries(tag, 1))


@pytest.mark.parametrize(("number", "multiple"), [(3, True), (3, False), (0, False), (1 << 63, True)])
def test_a_confirm_of_what_was_not_published(number: int, multiple: bool) -> None:
    one = link()
    one.on_deliveries(deliveries(1, 2))
    with pytest.raises(LinkFault, match="was not sent"):
        one.on_confirm(number, multiple, refused=False)


def test_a_confirm_that_comes_twice() -> None:
    one = link()
    one.on_deliveries(deliveries(1, 2))
    one.on_confirm(1, multiple=False, refused=False)
    with pytest.raises(LinkFault):
        one.on_confirm(1, multiple=False, refused=False)


def test_bodies_are_cut_to_the_frames_of_the_destination() -> None:
    one = Link("on-confirm", Target("", "q"), frame_max=4096)
    _, made = one.on_deliveries(deliveries(1, 1, body=b"b" * 10_000))
    assert split(made)[1] == b"b" * 10_000
    assert made.count(b"\x03\x00\x01\x00\x00") == 3


def test_a_content_that_cannot_be_read_ends_the_link() -> None:
    def rewrite(content: bytes) -> bytes:
        raise ValueError("nonsense")

    with pytest.raises(LinkFault, match="nonsense"):
        Link("on-confirm", Target("", "q"), rewrite).on_deliveries(deliveries(1, 1))


@pytest.mark.parametrize("marks", [True, False])
def test_what_the_source_delivers_again_is_marked_if_the_destination_knows_marks(marks: bool) -> None:
    first, second = with_origins([message()] * 2, SOURCE, 5)
    one = Link("on-confirm", Target("", "q"), marks=marks)
    given = [Delivery(1, False, ROUTE, first), Delivery(2, True, ROUTE, second), Delivery(3, True, ROUTE, message())]
    numbers = [take_origin(content).number for content in one.on_deliveries(given)[1::2]]
    assert numbers == [5, 6 | MARK if marks else 6, 0]
    bundle = packed(Bundle(SOURCE, 7, [message()] * 2))
    for tag, redelivered in ((4, False), (6, True)):
        frame = b"".join(one.on_bundle(BundleDelivery(tag, 2, redelivered, ROUTE, bundle)))
        first_number = read_publish(frame[7:-1])[1].first
        assert first_number == (7 | MARK if redelivered and marks else 7)


@pytest.mark.parametrize("is_bundle", [True, False])
def test_what_cannot_be_marked_ends_the_link(is_bundle: bool) -> None:
    one = Link("on-confirm", Target("", "q"), marks=True)
    with pytest.raises(LinkFault, match="cannot be read"):
        if is_bundle:
            one.on_bundle(BundleDelivery(1, 1, True, ROUTE, b"short"))
        else:
            one.on_deliveries([Delivery(1, True, ROUTE, b"short")])


def test_routes_are_remembered_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leveret.shovel.link.PREFIXES_MAX", 2)
    one = link(target=Target(None, None))
    for tag in range(1, 8):
        one.on_deliveries(deliveries(tag, 1, route=b"\x01x\x01" + bytes((64 + tag,))))
    assert len(one.prefixes) <= 2
