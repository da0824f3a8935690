"""Checkers notice what they should, in histories that were made up by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from faults.history.verdict import BROKEN, KEPT, UNSAID, Verdict, judge

SECOND = 1_000_000_000
ALL = {"kept": True, "marked": True, "settled": True, "ordered": True}


class Book:
    """Histories as they are written down by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = 0
        self.lines: dict[str, list[str]] = {}
        self.case: dict[str, Any] = {"promises": {"queues": {"q": ALL}}, "finished": True}

    def write(
        self, client: str, op: str, outcome: str = "ok", start: int = 0, end: int | None = 0, **more: Any
    ) -> None:
        self.clock += 1
        start, end = start or self.clock, None if end is None else end or self.clock
        entry = {"op": op, "start": start, "end": end, "outcome": outcome, **more}
        self.lines.setdefault(client, []).append(json.dumps(entry))

    def publish(self, *numbers: int, outcome: str = "ok", queue: str = "q", producer: str = "p.1") -> None:
        for number in numbers:
            self.write("p", "publish", outcome, queue=queue, producer=producer, number=number)

    def deliver(self, *numbers: int, marked: bool = False, client: str = "c", queue: str = "q") -> None:
        more: dict[str, Any] = {"queue": queue, "consumer": f"{client}.1", "producer": "p.1", "redelivered": marked}
        for number in numbers:
            self.write(client, "deliver", number=number, **more)

    def hold(self, holder: str, start: int, end: int | None, token: int = 0) -> None:
        self.write(holder, "hold", start=start, end=end, lock="l", holder=holder, token=token)

    def use(self, token: int, outcome: str = "ok") -> None:
        self.write("u", "use", outcome, lock="l", holder="u", token=token)

    def register(
        self, client: str, start: int, end: int | None, call: str, outcome: str = "ok", value: int = -1
    ) -> None:
        self.write(client, "register", outcome, start=start, end=end, key="k", call=call, value=value)

    def lease(self, owner: str, call: str, outcome: str = "ok", acked: int = 0, next: int = 0, **more: Any) -> None:
        answer = {"acked": acked, "next": next} if outcome == "ok" and call != "release" else {}
        self.write(owner, "lease", outcome, lease="job", owner=owner, call=call, **answer, **more)

    def read(self, owner: str, *places: int, numbers: tuple[int, ...] = ()) -> None:
        """Reads places, at which messages of these numbers are; by default those of the same number."""
        for place, number in zip(places, numbers or places, strict=True):
            more: dict[str, Any] = {"queue": "q", "producer": "p.1", "number": number}
            self.write(owner, "read", lease="job", owner=owner, place=place, **more)

    def judge(self) -> Verdict:
        for client, lines in self.lines.items():
            (self.folder / f"{client}.jsonl").write_text("\n".join(lines) + "\n")
        (self.folder / "case.json").write_text(json.dumps(self.case))
        return judge(self.folder)


@pytest.fixture
def book(tmp_path: Path) -> Book:
    return Book(tmp_path)


def test_a_good_history(book: Book) -> None:
    book.publish(1, 2, 3)
    book.publish(4, outcome="unknown")
    book.publish(5, outcome="refused")
    book.deliver(1, 2, 4)
    book.deliver(2, 3, marked=True, client="d")
    book.deliver(5, client="d")
    verdict = book.judge()
    assert verdict.code == KEPT and verdict.findings == []
    assert verdict.figures["confirmed"] == 3 and verdict.figures["delivered"] == 5
    assert verdict.figures["delivered again, marked"] == 1 and verdict.figures["refused and kept"] == 1


def test_a_lost_message(book: Book) -> None:
    book.publish(1, 2, 3)
    book.deliver(1, 3)
    verdict = book.judge()
    assert verdict.code == BROKEN and verdict.figures["lost"] == 1 and "q: p.1 2" in verdict.findings[0]


def test_a_message_that_was_not_confirmed_may_be_lost(book: Book) -> None:
    book.publish(1)
    book.publish(2, outcome="refused")
    book.publish(3, outcome="unknown")
    book.deliver(1)
    assert book.judge().code == KEPT


def test_a_queue_without_promises(book: Book) -> None:
    book.publish(1, 2, queue="transient")
    book.deliver(2, queue="transient")
    book.deliver(2, queue="transient", client="d")
    assert book.judge().code == KEPT


def test_a_message_delivered_twice_without_a_mark(book: Book) -> None:
    book.publish(1)
    book.deliver(1)
    book.deliver(1, client="d")
    verdict = book.judge()
    assert verdict.code == BROKEN and verdict.figures["doubled"] == 1


def test_a_marked_delivery_that_another_client_received_before_the_first_one(book: Book) -> None:
    book.publish(1)
    book.deliver(1, marked=True)
    book.deliver(1, client="d")
    assert book.judge().code == KEPT


def delivered_again(book: Book, fault_s: int, last_s: int = 60) -> Verdict:
    """A message is delivered after 10 s and, marked, after 50 s. Others come until `last_s`; there is one fault."""
    book.publish(1, 2)
    for consumer, number, at_s, marked in (("c", 1, 10, False), ("c", 2, last_s, False), ("d", 1, 50, True)):
        more: dict[str, Any] = {"queue": "q", "producer": "p.1", "number": number, "redelivered": marked}
        book.write(consumer, "deliver", start=at_s * SECOND, end=at_s * SECOND, consumer=consumer, **more)
    book.write("faults", "fault", start=fault_s * SECOND, end=(fault_s + 1) * SECOND, what="kill")
    return book.judge()


def test_a_message_that_comes_back_long_after_its_acknowledgement(book: Book) -> None:
    verdict = delivered_again(book, fault_s=40)
    assert verdict.code == BROKEN and verdict.figures["came back"] == 1 and "q: p.1 1" in verdict.findings[0]


@pytest.mark.parametrize("fault_s", [6, 9, 12])
def test_an_acknowledgement_about_the_time_of_a_fault_may_be_lost(book: Book, fault_s: int) -> None:
    assert delivered_again(book, fault_s).code == KEPT


def test_what_a_consumer_received_last_may_not_be_acknowledged(book: Book) -> None:
    assert delivered_again(book, fault_s=40, last_s=11).code == KEPT


def test_a_message_that_nobody_published(book: Book) -> None:
    book.publish(1)
    book.deliver(1, 2)
    verdict = book.judge()
    assert verdict.code == BROKEN and verdict.figures["made up"] == 1


def test_messages_out_of_order(book: Book) -> None:
    book.publish(1, 2, 3)
    book.deliver(1, 3, 2)
    verdict = book.judge()
    assert verdict.code == BROKEN and verdict.figures["out of order"] == 1


def test_what_is_marked_or_at_another_consumer_has_no_order(book: Book) -> None:
    book.publish(1, 2, 3)
    book.deliver(3)
    book.deliver(1, client="d")
    book.deliver(2, marked=True)
    assert book.judge().code == KEPT


def test_two_holders_at_once(book: Book) -> None:
    book.case["promises"] = {"locks": {"l": {"exclusive": True}}}
    book.hold("a", 10, 20)
    book.hold("b", 19, 30)
    verdict = book.judge()
    assert verdict.code == BROKEN and verdict.figures["held by two"] == 1


def test_a_holder_within_a_longer_one(book: Book) -> None:
    book.case["promises"] = {"locks": {"l": {"exclusive": True}}}
    book.hold("a", 10, None)
    book.hold("a", 12, 13)
    book.hold("b", 50, 60)
    assert book.judge().code == BROKEN


def test_one_holder_after_the_other(book: Book) -> None:
    book.case["promises"] = {"locks": {"l": {"exclusive": True}}}
    book.hold("a", 10, 20)
    book.hold("b", 21, 30)
    assert book.judge().code == KEPT


def test_a_token_that_two_had(book: Book) -> None:
    book.case["promises"] = {"locks": {"l": {"fenced": True}}}
    book.hold("a", 10, 20, token=1)
    book.hold("b", 15, 30, token=1)
    assert "same token" in book.judge().findings[0]


def test_a_token_that_does_not_grow(book: Book) -> None:
    book.case["promises"] = {"locks": {"l": {"fenced": True}}}
    book.hold("a", 10, 20, token=2)
    book.hold("b", 25, 30, token=1)
    assert "after 2 had been held" in book.judge().findings[0]


def test_overlapping_holders_are_no_harm_with_growing_tokens(book: Book) -> None:
    book.case["promises"] = {"locks": {"l": {"fenced": True}}}
    book.hold("a", 10, 20, token=1)
    book.hold("b", 15, 30, token=2)
    book.use(2)
    book.use(1, outcome="refused")
    assert book.judge().code == KEPT


def test_a_resource_that_takes_an_old_token(book: Book) -> None:
    book.hold("a", 10, 20, token=1)
    book.use(2)
    book.use(1)
    assert book.judge().code == BROKEN


def test_a_lease_that_changes_its_owner(book: Book) -> None:
    book.publish(0, 1, 2, 3)
    book.lease("a", "open")
    book.lease("a", "take", next=2)
    book.read("a", 0, 1)
    book.lease("a", "ack", acked=1, next=2, through=1)
    book.lease("b", "open", acked=1, next=2)
    book.read("b", 1)
    book.lease("a", "ack", "refused", through=2)
    book.lease("b", "release")
    book.deliver(1, marked=True)
    book.lease("b", "open", acked=3, next=3)
    book.read("b", 3, 4, numbers=(2, 3))
    verdict = book.judge()
    assert verdict.code == KEPT and verdict.findings == []
    assert verdict.figures["places read"] == 4 and verdict.figures["owners in turn"] == 3
    assert verdict.figures["releases"] == verdict.figures["refused as former owner"] == 1
    assert verdict.figures["delivered"] == 4


def test_a_confirmed_message_that_no_reader_of_a_lease_found(book: Book) -> None:
    book.publish(0, 1)
    book.read("a", 0)
    assert book.judge().figures["lost"] == 1


def test_a_place_with_two_messages(book: Book) -> None:
    book.publish(1, 2)
    book.read("a", 0, numbers=(1,))
    book.read("b", 0, numbers=(2,))
    assert "place 0 was" in book.judge().findings[0]


@pytest.mark.parametrize("how", ["place", "consumer"])
def test_a_message_that_comes_back_after_it_was_settled(book: Book, how: str) -> None:
    book.publish(0)
    book.lease("a", "open")
    book.read("a", 0)
    book.lease("a", "ack", acked=1, next=1, through=1)
    if how == "place":
        book.read("a", 1, numbers=(0,))
    else:
        book.deliver(0, marked=True)
    assert "was settled at place 0 and came again" in book.judge().findings[0]


def test_a_message_that_a_release_returned_may_come_again(book: Book) -> None:
    book.publish(0)
    book.lease("a", "open")
    book.read("a", 0)
    book.write("b", "lease", start=book.clock, end=book.clock + 9, lease="job", owner="b", call="release")
    book.lease("a", "ack", acked=1, next=1, through=1)  # Of nothing, perhaps: the release may have been before.
    book.read("a", 2, numbers=(0,))
    assert book.judge().code == KEPT


def test_a_leased_message_that_a_consumer_gets_without_a_mark(book: Book) -> None:
    book.publish(0)
    book.read("a", 0)
    book.deliver(0)
    assert "without a mark" in book.judge().findings[0]


@pytest.mark.parametrize("call", ["take", "ack"])
def test_a_former_owner_that_goes_on(book: Book, call: str) -> None:
    book.publish(0)
    book.read("a", 0)
    book.lease("a", "open")
    book.lease("b", "open")
    book.lease("a", call, through=0)
    assert "after b had taken the lease over" in book.judge().findings[0]


def test_an_owner_whose_own_takeover_had_no_answer(book: Book) -> None:
    book.publish(0)
    book.read("a", 0)
    book.lease("b", "open")
    book.write("a", "lease", "unknown", end=None, lease="job", owner="a", call="open")
    book.lease("a", "take")
    assert book.judge().code == KEPT


def test_a_lease_that_forgets_what_was_answered(book: Book) -> None:
    book.publish(0)
    book.read("a", 0)
    book.lease("a", "open", next=5)
    book.lease("a", "open", next=4)
    assert "next went back from 5 to 4" in book.judge().findings[0]


def test_metadata_with_an_order(book: Book) -> None:
    book.register("a", 10, 40, "declare", value=1)
    book.register("b", 20, 30, "read", "absent")
    book.register("b", 31, 60, "declare", "refused", value=2)
    book.register("c", 61, 70, "delete")
    book.register("b", 71, 80, "declare", value=2)
    book.register("c", 81, 90, "read", "present")
    verdict = book.judge()
    assert verdict.code == KEPT and verdict.figures["operations"] == 6


def test_a_read_that_does_not_see_an_earlier_declaration(book: Book) -> None:
    book.register("a", 10, 20, "declare", value=1)
    book.register("b", 21, 30, "read", "absent")
    verdict = book.judge()
    assert verdict.code == BROKEN and verdict.figures["not linearizable"] == 1


def test_old_answers_are_counted_where_they_are_not_promised_to_be_new(book: Book) -> None:
    book.case["promises"] = {"registers": {"linearizable": False}}
    book.register("a", 10, 20, "declare", value=1)
    book.register("b", 21, 30, "read", "absent")
    verdict = book.judge()
    assert verdict.code == KEPT and verdict.figures["not linearizable"] == 1


def test_lookups_may_differ_while_a_change_is_made_and_not_after_it(book: Book) -> None:
    book.register("a", 10, 20, "declare", value=1)
    book.register("a", 30, 60, "delete")
    book.register("b", 35, 40, "read", "absent")
    book.register("c", 41, 50, "declare", "refused", value=2)
    verdict = book.judge()
    assert verdict.code == KEPT and verdict.figures["not linearizable"] == 1
    book.register("c", 61, 70, "read", "present")
    verdict = book.judge()
    assert verdict.code == BROKEN and "c read: present" in verdict.findings[0]


def test_two_values_at_once(book: Book) -> None:
    book.register("a", 10, 20, "declare", value=1)
    book.register("b", 21, 30, "declare", value=2)
    assert book.judge().code == BROKEN


def test_a_declaration_without_an_answer_may_come_late_or_never(book: Book) -> None:
    book.register("a", 10, None, "declare", "unknown", value=1)
    book.register("b", 21, 30, "read", "absent")
    book.register("b", 41, 50, "declare", "refused", value=2)
    assert book.judge().code == KEPT
    book.register("b", 61, 70, "delete")
    book.register("b", 71, 80, "read", "present")  # It has taken effect once already.
    assert book.judge().code == BROKEN


def test_time_until_all_works_again(book: Book) -> None:
    book.write("p", "publish", start=1, end=1 * SECOND, queue="q", producer="p.1", number=1)
    book.write("faults", "fault", start=2 * SECOND, end=5 * SECOND, what="a cut")
    book.write("p", "publish", start=1, end=7 * SECOND, queue="q", producer="p.1", number=2)
    book.deliver(1, 2)
    book.case["load_ended_ns"] = 9 * SECOND
    verdict = book.judge()
    assert verdict.code == KEPT and verdict.figures["recovered after ms"] == 2_000
    assert verdict.figures["longest wait ms"] == 6_000


def test_the_time_of_the_next_fault_is_not_that_of_recovery(book: Book) -> None:
    """A cut of ten seconds began a second after the one before had ended: what counts is the time without a fault."""
    book.write("p", "publish", start=1, end=1 * SECOND, queue="q", producer="p.1", number=1)
    book.write("faults", "fault", start=2 * SECOND, end=5 * SECOND, what="a cut")
    book.write("faults", "fault", start=6 * SECOND, end=16 * SECOND, what="another cut")
    book.write("p", "publish", start=1, end=18 * SECOND, queue="q", producer="p.1", number=2)
    book.deliver(1, 2)
    book.case["load_ended_ns"] = 20 * SECOND
    figures = book.judge().figures
    assert figures["recovered after ms"] == 2_000 and figures["longest wait ms"] == 17_000


def test_a_client_that_never_works_again(book: Book) -> None:
    book.publish(1)
    book.deliver(1)
    book.write("faults", "fault", start=2 * SECOND, end=5 * SECOND, what="a cut")
    book.case["load_ended_ns"] = 60 * SECOND
    verdict = book.judge()
    assert verdict.code == BROKEN and "no success in 55 s" in verdict.findings[0]


def test_a_lock_that_one_client_gets_again_and_another_does_not(book: Book) -> None:
    book.hold("a", 1, 2)
    book.hold("b", 3, 4)
    book.write("faults", "fault", start=2 * SECOND, end=5 * SECOND, what="a cut")
    book.case["load_ended_ns"] = 60 * SECOND
    assert "l had no success in 55 s" in book.judge().findings[0]
    book.hold("a", 7 * SECOND, 8 * SECOND)
    verdict = book.judge()
    assert verdict.code == KEPT and verdict.figures["recovered after ms"] == 2_000


def test_a_run_that_did_not_end_proves_nothing(book: Book) -> None:
    book.publish(1)
    book.case["finished"] = False
    assert book.judge().code == UNSAID


def test_a_run_in_which_nothing_happened_proves_nothing(book: Book) -> None:
    assert book.judge().code == UNSAID


def test_what_the_runner_noticed_counts(book: Book) -> None:
    book.publish(1)
    book.deliver(1)
    book.case["noticed"] = ["n1 did not start"]
    assert book.judge().code == BROKEN


def test_a_folder_or_line_that_is_no_history(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no case"):
        judge(tmp_path)
    (tmp_path / "case.json").write_text("{}")
    (tmp_path / "c.jsonl").write_text('{"op": "publish"}\n')
    with pytest.raises(ValueError, match="line 1"):
        judge(tmp_path)
