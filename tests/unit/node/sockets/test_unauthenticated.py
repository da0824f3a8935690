from __future__ import annotations

import random

from leveret.node.sockets.unauthenticated import TELL_S, Unauthenticated, share_of


def test_the_oldest_of_the_address_that_has_most_goes_first() -> None:
    strangers: Unauthenticated[str] = Unauthenticated()
    for name, host in (
        ("a1", "10.0.0.1"),
        ("b1", "10.0.0.2"),
        ("b2", "10.0.0.2"),
        ("b3", "10.0.0.2"),
        ("a2", "10.0.0.1"),
    ):
        strangers.add(name, host)
    assert [strangers.evict() for _ in range(6)] == ["b1", "a1", "b2", "a2", "b3", None]
    assert strangers.evicted == 5


def test_of_many_addresses_with_one_each_the_oldest_goes_first() -> None:
    strangers: Unauthenticated[int] = Unauthenticated()
    for number in range(100):
        strangers.add(number, f"10.0.0.{number}")
    assert [strangers.evict() for _ in range(100)] == list(range(100))


def test_who_is_known_is_no_stranger() -> None:
    strangers: Unauthenticated[str] = Unauthenticated()
    for name in "abc":
        strangers.add(name, "10.0.0.1")
    strangers.discard("a")
    strangers.discard("a")
    assert (len(strangers), "a" in strangers, list(strangers)) == (2, False, ["b", "c"])
    assert strangers.next_to_go() == "b"


def test_shares() -> None:
    assert share_of("10.0.0.1") == "10.0.0.1" == share_of("::ffff:10.0.0.1")
    assert share_of("2001:db8::1") == share_of("2001:db8::ffff:ffff:ffff:ffff") != share_of("2001:db8:0:1::1")
    assert share_of("fe80::1%eth0") == share_of("fe80::2%eth0")
    assert share_of("") == ""


def test_as_a_plain_list_would_do_it() -> None:
    rng, strangers = random.Random(7), Unauthenticated[int]()
    there: list[tuple[int, str]] = []
    for number in range(5_000):
        host = f"10.0.0.{rng.randrange(4)}"
        there.append((number, host))
        strangers.add(number, host)
        if rng.random() < 0.5:
            gone = there.pop(rng.randrange(len(there)))
            strangers.discard(gone[0])
        if len(there) > 50:
            hosts = [host for _, host in there]
            evicted = strangers.evict()
            [(at, mine)] = [(at, one[1]) for at, one in enumerate(there) if one[0] == evicted]
            assert hosts.count(mine) == max(map(hosts.count, hosts)) and hosts.index(mine) == at
            del there[at]
        assert list(strangers) == [one for one, _ in there]


def test_the_log_is_told_now_and_then() -> None:
    strangers: Unauthenticated[int] = Unauthenticated()
    for number in range(10):
        strangers.add(number, "10.0.0.1")
    assert strangers.to_tell(5.0) == 0
    strangers.evict()
    assert (strangers.to_tell(5.0), strangers.to_tell(5.0)) == (1, 0)
    for _ in range(3):
        strangers.evict()
    assert (strangers.to_tell(5.1), strangers.to_tell(5.0 + TELL_S)) == (0, 3)
