"""The machine of a link that leaves out messages: confirms become the acknowledgements of the right ones."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.client.machine import Delivery
from leveret.federation.link import FederationLink
from leveret.metadata.shovel.parameters import AckMode
from leveret.protocol.frames import content
from leveret.protocol.origins import MARK, source_of, take_origin, with_origins
from leveret.protocol.properties import Properties, encode
from leveret.shovel.link import LinkFault, Settlement, Target

ROUTE = b"\x01x\x01k"


def link_of(mode: AckMode = "on-confirm") -> FederationLink:
    """A link that leaves out messages whose content begins with a minus."""
    return FederationLink(
        mode, Target("x", None), lambda content, _, __: None if content.startswith(b"-") else content, 0
    )


def deliver(link: FederationLink, *contents: bytes) -> list[bytes]:
    first = link.delivered + 1
    return link.on_deliveries([Delivery(tag, False, ROUTE, one) for tag, one in enumerate(contents, first)])


def test_what_is_left_out_is_acknowledged_at_once() -> None:
    link = link_of()
    assert deliver(link, b"a", b"-", b"b")[1::2] == [b"a", b"b"]
    assert link.take_settlements() == [Settlement(2, False, False)]
    link.on_confirm(2, True, False)
    assert link.take_settlements() == [Settlement(3, True, False)]
    deliver(link, b"-", b"-", b"c", b"d")
    link.take_settlements()
    link.on_confirm(4, False, False)
    link.on_confirm(3, False, True)
    assert link.take_settlements() == [Settlement(7, False, False), Settlement(6, False, True)]
    assert (link.forwarded, link.dropped, link.pending, link.is_resting) == (3, 3, 0, True)
    assert len(link.shifts) == 1


def test_what_the_upstream_delivers_again_is_marked() -> None:
    plain = content(encode(Properties(), 1), b"a", 0)
    first, second = with_origins([plain] * 2, source_of(b"a" * 32, 7, 9), 5)
    for mode, expected in (("on-confirm", [5, 6 | MARK]), ("on-publish", [5, 6])):
        link = link_of(cast(AckMode, mode))
        made = link.on_deliveries([Delivery(1, False, ROUTE, first), Delivery(2, True, ROUTE, second)])[1::2]
        assert [take_origin(one).number for one in made] == expected


def test_other_modes() -> None:
    link = link_of("on-publish")
    deliver(link, b"a", b"-")
    assert link.take_settlements() == [Settlement(2, True, False)]
    link = link_of("no-ack")
    deliver(link, b"a", b"-")
    assert link.take_settlements() == [] and link.forwarded == 1


def test_faults() -> None:
    link = link_of()
    with pytest.raises(LinkFault, match="out of order"):
        link.on_deliveries([Delivery(2, False, ROUTE, b"a")])
    deliver(link, b"-")
    with pytest.raises(LinkFault, match="not sent"):
        link.on_confirm(1, False, False)

    def broken(content: bytes, redelivered: bool, route: bytes) -> bytes | None:
        raise ValueError("malformed")

    with pytest.raises(LinkFault, match="cannot be read: malformed"):
        deliver(FederationLink("on-confirm", Target("x", None), broken, 0), b"a")


@given(st.lists(st.booleans(), max_size=60), st.randoms(use_true_random=False))
def test_any_order_of_confirms_acknowledges_each_message_once(kept: list[bool], random: st.DataObject) -> None:
    link = link_of()
    for one in kept:
        deliver(link, b"a" if one else b"-")
    left: set[int] = set(range(1, len(kept) + 1))
    unconfirmed = list(range(1, link.published + 1))
    while True:
        for tag, multiple, _ in link.take_settlements():
            done = {one for one in left if one <= tag} if multiple else {tag}
            assert tag in left or multiple
            published = {number for number, one in enumerate(kept, 1) if one}
            numbers = {sorted(published).index(one) + 1 for one in done & published}
            assert not numbers & set(unconfirmed)  # Nothing is acknowledged before it is confirmed.
            left -= done
        if not unconfirmed:
            break
        at = random.randrange(len(unconfirmed))  # type: ignore[attr-defined]
        number = unconfirmed[at]
        multiple = random.random() < 0.5  # type: ignore[attr-defined]
        unconfirmed = [one for one in unconfirmed if one > number] if multiple else [
            one for one in unconfirmed if one != number
        ]
        link.on_confirm(number, multiple, False)
    assert not left
