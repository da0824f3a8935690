"""Client ids, sessions and wills, command by command. Times are in seconds here."""

from __future__ import annotations

from dataclasses import dataclass, field

from leveret.metadata.client_sessions import TAKEN_MAX
from leveret.metadata.model import commands as c
from leveret.metadata.mqtt.commands import (
    ChangeSessions,
    ClaimClientIds,
    ClaimRow,
    DueRow,
    ReleaseClientIds,
    ReleaseRow,
    SessionRow,
    SweepSessions,
    WillsPublished,
)
from leveret.metadata.mqtt.events import SessionChanged
from leveret.metadata.mqtt.records import NEVER_S, ClientSession, NumberRange, RetainedMessage, Subscription, Will
from leveret.metadata.store import Applied, Metadata


def will(text: bytes = b"gone", delay_s: int = 0, retained: bool = False, expiry_s: int = 0) -> Will:
    kept = RetainedMessage("wills", text) if retained else None
    return Will("amq.topic", "wills", text, delay_s, kept, expiry_s)


@dataclass
class Store:
    metadata: Metadata = field(default_factory=Metadata)
    now_s: int = 1_000

    def __post_init__(self) -> None:
        self.apply(c.AddVhost("/"))
        self.apply(c.NodeStarted("a", run="run a"))
        self.apply(c.NodeStarted("b", run="run b"))

    def apply(self, command: c.Command) -> Applied:
        applied = self.metadata.apply(command)
        copy = Metadata()
        copy.restore(self.metadata.snapshot())
        assert copy.snapshot() == self.metadata.snapshot()
        return applied

    def claim(
        self,
        node: str = "a",
        *,
        clean: bool = False,
        expiry_s: int = 60,
        the_will: Will | None = None,
        queues: tuple[str, ...] = (),
        client_id: str = "c",
    ) -> SessionChanged | None:
        row = ClaimRow("/", client_id, 1, "guest", clean, expiry_s, queues, the_will)
        applied = self.apply(ClaimClientIds(node, f"run {node}", (row,), self.now_s * 1000, 3))
        found = [event for event in applied.events if isinstance(event, SessionChanged)]
        return found[0] if found else None

    def release(self, epoch: int, publish_will: bool = True, expiry_s: int | None = None) -> Applied:
        return self.apply(ReleaseClientIds((ReleaseRow("/", "c", epoch, self.now_s * 1000, publish_will, expiry_s),)))

    def sweep(self) -> Applied:
        rows = tuple(DueRow(one.vhost, one.client_id, one.epoch) for one in self.metadata.sessions)
        return self.apply(SweepSessions(self.now_s * 1000, rows))

    def change(self, row: SessionRow) -> bool:
        return bool(self.apply(ChangeSessions((row,))).events)

    @property
    def session(self) -> ClientSession | None:
        return self.metadata.sessions.get("/", "c")

    @property
    def epoch(self) -> int:
        assert self.session is not None
        return self.session.epoch

    @property
    def due(self) -> list[bytes]:
        return [one.content for one in self.metadata.wills.values()]


def test_a_claim_has_an_epoch_and_the_next_one_a_higher() -> None:
    store = Store()
    first, second = store.claim("a"), store.claim("b")
    assert first is not None and second is not None and first.new is not None and second.new is not None
    assert first.old is None and not first.is_present
    assert second.old == first.new and second.is_present
    assert (second.new.node, second.new.born) == ("b", first.new.born)
    assert second.new.epoch > first.new.epoch


def test_a_claim_of_an_earlier_run_is_refused() -> None:
    store = Store()
    store.apply(c.NodeStarted("a", run="next run"))
    assert store.claim("a") is None and store.session is None


def test_a_vhost_has_only_so_many_sessions() -> None:
    store = Store()
    for client_id in "abcd":
        store.claim(client_id=client_id)
    assert [one.client_id for one in store.metadata.sessions] == ["a", "b", "c"]
    assert store.claim(client_id="a") is not None  # It has one already.


def test_only_the_present_claim_counts() -> None:
    store = Store()
    store.claim("a")
    old = store.epoch
    store.claim("b")
    assert not store.change(SessionRow("/", "c", old, {"t": Subscription(1)}))
    store.release(old)
    assert store.session is not None and store.session.node == "b" and not store.session.subscriptions
    assert store.change(SessionRow("/", "c", store.epoch, {"t": Subscription(1)}))


def test_a_session_goes_on_without_a_clean_start() -> None:
    store = Store()
    store.claim("a")
    store.change(SessionRow("/", "c", store.epoch, {"t": Subscription(2, identifier=5)}, received=((7, 2, 1),)))
    store.release(store.epoch)
    claim = store.claim("b")
    assert claim is not None and claim.is_present and store.session is not None
    assert store.session.subscriptions == {"t": Subscription(2, identifier=5)}
    assert store.session.received == {7: 1, 8: 2} and store.session.last_number == 2
    claim = store.claim("b", clean=True)
    assert claim is not None and not claim.is_present
    assert not store.session.subscriptions and not store.session.received
    assert store.session.born == store.session.epoch


def test_packet_ids_come_and_go_in_ranges() -> None:
    store = Store()
    store.claim()
    epoch = store.epoch
    store.change(SessionRow("/", "c", epoch, received=((5, 3, 11),), releasing=((1, 3),)))
    store.change(SessionRow("/", "c", epoch, received=((9, 1, 14),), completed=((5, 2),), released=((2, 1),)))
    assert store.session is not None
    assert store.session.received == {7: 13, 9: 14} and store.session.last_number == 14
    assert store.session.releasing == {1, 3}


def test_numbers_of_messages_that_the_client_has() -> None:
    store = Store()
    store.claim()

    def take(queue: str, *ranges: tuple[int, int]) -> list[tuple[int, int]]:
        taken = tuple(NumberRange(*one) for one in ranges)
        store.change(SessionRow("/", "c", store.epoch, taken_of=queue, taken=taken))
        assert store.session is not None and store.session.taken_of == queue
        return list(store.session.taken)

    assert take("7.0", (1, 3)) == [(1, 3)]
    assert take("7.0", (4, 5)) == [(1, 5)]
    assert take("7.0", (8, 8), (1 << 33, 1 << 34)) == [(1, 5), (8, 8), (1 << 33, 1 << 34)]
    assert take("7.0", (2, 9)) == [(1, 9), (1 << 33, 1 << 34)]
    assert take("8.0", (2, 2)) == [(2, 2)]  # Another queue numbers its own messages.
    take("8.0", *((number, number) for number in range(10, 2 * TAKEN_MAX, 2)))
    for number in range(2 * TAKEN_MAX, 2 * TAKEN_MAX + 200, 2):
        found = take("8.0", (number, number))
    assert len(found) == TAKEN_MAX and found[-1] == (number, number)


def test_a_session_ends_with_its_time_and_takes_its_queues_along() -> None:
    store = Store()
    store.apply(c.DeclareQueue("/", "q"))
    store.claim(expiry_s=60, queues=("q", "never declared"))
    store.release(store.epoch)
    store.now_s += 59
    assert store.sweep().events == ()
    store.now_s += 1
    assert store.sweep().events
    assert store.session is None and not store.metadata.queues


def test_a_session_without_expiry_ends_with_its_connection() -> None:
    store = Store()
    store.apply(c.DeclareQueue("/", "q"))
    store.claim(expiry_s=0, queues=("q",))
    claim = store.claim(expiry_s=0, queues=("q",))
    assert claim is not None and not claim.is_present and not store.metadata.queues
    store.release(store.epoch)
    assert store.session is None


def test_a_session_may_last_for_ever_and_a_disconnect_may_change_that() -> None:
    store = Store()
    store.claim(expiry_s=NEVER_S)
    store.release(store.epoch)
    store.now_s += 1_000_000_000
    assert store.sweep().events == () and store.session is not None
    assert store.session.due_ms is None
    store.claim(expiry_s=NEVER_S)
    store.release(store.epoch, expiry_s=0)
    assert store.session is None


def test_a_claim_after_the_time_finds_no_session_even_if_nobody_has_swept() -> None:
    store = Store()
    store.claim(expiry_s=60)
    store.release(store.epoch)
    store.now_s += 60
    claim = store.claim()
    assert claim is not None and not claim.is_present


# Wills


def test_a_will_is_due_when_its_connection_is_lost() -> None:
    store = Store()
    store.claim(the_will=will())
    store.release(store.epoch)
    assert store.due == [b"gone"] and store.session is not None and store.session.will is None
    store.apply(WillsPublished(tuple(store.metadata.wills)))
    assert store.due == []


def test_no_will_after_a_goodbye() -> None:
    store = Store()
    store.claim(the_will=will(delay_s=5))
    store.release(store.epoch, publish_will=False)
    store.now_s += 100
    store.sweep()
    assert store.due == []


def test_a_will_waits_for_its_delay_or_for_the_end_of_the_session() -> None:
    for delay_s, expiry_s, after_s in ((10, 60, 10), (100, 60, 60)):
        store = Store()
        store.claim(the_will=will(delay_s=delay_s), expiry_s=expiry_s)
        store.release(store.epoch)
        store.now_s += after_s - 1
        store.sweep()
        assert store.due == []
        store.now_s += 1
        store.sweep()
        assert store.due == [b"gone"]


def test_a_client_that_returns_in_time_has_no_will_published() -> None:
    store = Store()
    store.claim(the_will=will(delay_s=10))
    store.release(store.epoch)
    store.claim("b")
    store.now_s += 100
    store.sweep()
    assert store.due == []


def test_a_clean_start_ends_the_session_and_publishes_the_will_that_waits() -> None:
    store = Store()
    store.claim(the_will=will(delay_s=10))
    store.release(store.epoch)
    store.claim("b", clean=True)
    assert store.due == [b"gone"]


def test_a_connection_that_was_taken_over_says_whether_there_was_a_goodbye() -> None:
    for says_goodbye in (False, True):
        store = Store()
        store.claim("a", the_will=will())
        old = store.epoch
        store.claim("b", the_will=will(b"other"))
        assert store.due == []
        store.release(old, publish_will=not says_goodbye)
        assert store.due == ([] if says_goodbye else [b"gone"]) and not store.metadata.leaving
        store.release(old)  # Again: it is decided.
        assert len(store.due) == (not says_goodbye)


def test_a_node_that_is_lost_has_said_no_goodbye() -> None:
    store = Store()
    store.claim("a", the_will=will())
    store.claim("b", the_will=will(b"other"))
    store.apply(c.NodeStarted("a"))
    assert store.due == [b"gone"]


def test_a_will_with_a_delay_is_void_when_the_session_is_taken_over_and_goes_on() -> None:
    store = Store()
    store.claim("a", the_will=will(delay_s=10))
    old = store.epoch
    store.claim("b")
    store.release(old)
    assert store.due == [] and not store.metadata.leaving


def test_a_will_can_be_retained_from_the_moment_it_is_due() -> None:
    store = Store()
    store.claim(the_will=will(retained=True, expiry_s=9))
    assert not store.metadata.retained.by_vhost
    store.release(store.epoch)
    message = store.metadata.retained.get("/", "wills")
    assert message is not None and message.expires_ms == (store.now_s + 9) * 1000
    store.claim(the_will=will(b"", retained=True))
    store.release(store.epoch)
    assert store.metadata.retained.get("/", "wills") is None


# Nodes and vhosts


def test_sessions_of_a_lost_node_count_from_the_next_sweep() -> None:
    store = Store()
    store.claim("a", the_will=will(delay_s=5), expiry_s=60)
    store.now_s += 500
    store.apply(c.NodeStarted("a", run="next"))
    assert store.session is not None and store.session.node == "" and store.session.due_ms == 0
    store.sweep()
    assert store.due == [] and store.session.ends_ms == (store.now_s + 60) * 1000
    store.now_s += 5
    store.sweep()
    assert store.due == [b"gone"]


def test_sessions_without_expiry_end_with_the_node() -> None:
    store = Store()
    store.claim("a", the_will=will(), expiry_s=0)
    store.apply(c.ForgetNode("a"))
    store.sweep()
    assert store.session is None and store.due == [b"gone"]


def test_a_session_lost_with_its_node_can_be_claimed_before_the_sweep() -> None:
    store = Store()
    store.claim("a", the_will=will(), expiry_s=60)
    store.apply(c.NodeStarted("a"))
    claim = store.claim("b")
    assert claim is not None and claim.is_present
    assert store.due == [b"gone"]  # The connection was lost, and the will has no delay.


def test_a_vhost_takes_sessions_and_wills_along() -> None:
    store = Store()
    store.claim("a", the_will=will())
    store.claim("b", the_will=will())
    store.release(store.epoch)
    store.claim("b", the_will=will())
    store.apply(c.DeleteVhost("/"))
    metadata = store.metadata
    assert not list(metadata.sessions) and not metadata.wills and not metadata.leaving


def test_a_node_gets_another_name() -> None:
    store = Store()
    store.claim("a", the_will=will())
    store.claim("a")
    store.apply(c.RenameNode("a", "z"))
    assert store.session is not None and store.session.node == "z"
    assert [one.node for one in store.metadata.leaving.values()] == ["z"]
