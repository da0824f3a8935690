from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.base.json_values import Json
from leveret.metadata import rebalancing
from leveret.metadata.rebalancing import (
    CONNECTIONS,
    MASTERS,
    MESSAGES,
    RANDOM,
    ROUND_ROBIN,
    STRATEGIES,
    WEIGHTED,
    BadPlan,
    NodeState,
    Plan,
    QueueState,
    Settings,
    balance,
    from_file,
    refusal,
)

ABC = [NodeState(name) for name in "abc"]


def queue(number: int, master: str, in_sync: str | None = None, **more: object) -> QueueState:
    members = None if in_sync is None else tuple(in_sync)
    return QueueState(number, "/", f"q{number}", master, in_sync=members, **more)  # type: ignore[arg-type]


def moves(plan: Plan) -> list[str]:
    return [f"{one.queue}: {one.source} → {one.target}" for one in plan.moves]


def applied(queues: Sequence[QueueState], plan: Plan) -> list[QueueState]:
    homes = {move.id: move.target for move in plan.moves}
    return [dataclasses.replace(one, master=homes.get(one.id, one.master)) for one in queues]


# -- Strategies ----------------------------------------------------------------------------------------------------


def test_masters_are_spread() -> None:
    plan = balance(ABC, [queue(number, "a", "abc") for number in range(6)], Settings(MASTERS))
    assert plan.before == {"a": 6, "b": 0, "c": 0} and plan.after == {"a": 2, "b": 2, "c": 2}
    assert len(plan.moves) == 4
    assert plan.moves[0].why == "a has 6 masters, b 0" or plan.moves[0].why == "a has 6 masters, c 0"


def test_one_more_than_another_is_even() -> None:
    queues = [queue(1, "a", "abc"), queue(2, "a", "abc"), queue(3, "b", "abc"), queue(4, "c", "abc")]
    assert moves(balance(ABC, queues, Settings(MASTERS, threshold=0))) == []


def test_messages_weigh() -> None:
    queues = [queue(1, "a", messages=900), queue(2, "a", messages=500), queue(3, "a", messages=400)]
    plan = balance(ABC[:2], queues, Settings(MESSAGES))
    assert moves(plan) == ["q1: a → b"]
    assert plan.after == {"a": 900, "b": 900}
    assert plan.moves[0].why == "900 messages: a has 1,800 messages, b 0"


def test_connections_of_a_node_count_besides_the_consumers_of_its_queues() -> None:
    nodes = [NodeState("a", connections=10), NodeState("b", connections=10)]
    queues = [queue(1, "a", consumers=5), queue(2, "a", consumers=5)]
    assert len(balance(nodes, queues, Settings(CONNECTIONS)).moves) == 1
    crowded = [NodeState("a", connections=10), NodeState("b", connections=30)]
    assert moves(balance(crowded, queues, Settings(CONNECTIONS))) == []


def test_a_queue_that_nobody_uses_is_not_moved_for_balance() -> None:
    queues = [queue(1, "a"), queue(2, "a"), queue(3, "a", messages=1)]
    assert moves(balance(ABC, queues, Settings(MESSAGES))) == []
    assert moves(balance(ABC, queues, Settings(CONNECTIONS))) == []


def test_a_node_with_twice_the_capacity_leads_twice_as_many() -> None:
    nodes = [NodeState("a"), NodeState("b", capacity=2.0)]
    plan = balance(nodes, [queue(number, "a") for number in range(9)], Settings(WEIGHTED))
    assert plan.after == {"a": 3, "b": 6}


def test_round_robin_goes_to_the_nodes_in_turn() -> None:
    plan = balance(ABC, [queue(number, "c", "abc") for number in range(6)], Settings(ROUND_ROBIN))
    assert plan.after == {"a": 2, "b": 2, "c": 2}


def test_random_follows_its_seed() -> None:
    nodes = [NodeState(name) for name in "abcdefgh"]
    queues = [queue(number, "a") for number in range(8)]
    plans = {balance(nodes, queues, Settings(RANDOM, seed=seed)).moves for seed in range(20)}
    assert len(plans) > 5
    assert balance(nodes, queues, Settings(RANDOM, seed=3)) == balance(nodes, queues, Settings(RANDOM, seed=3))


def test_of_equal_queues_that_with_the_least_to_carry_goes() -> None:
    queues = [queue(1, "a", messages=70), queue(2, "a", messages=7), queue(3, "a", messages=700)]
    assert moves(balance(ABC[:2], queues, Settings(MASTERS))) == ["q2: a → b"]
    assert moves(balance(ABC[:2], [*queues, queue(4, "a", "ab", messages=9_000)], Settings(MASTERS, moves_max=1))) == [
        "q4: a → b"  # A change of roles carries nothing.
    ]


# -- Hysteresis ----------------------------------------------------------------------------------------------------


def test_what_is_nearly_even_stays() -> None:
    queues = [queue(number, "a" if number < 54 else "b") for number in range(100)]
    assert moves(balance(ABC[:2], queues, Settings(MASTERS, threshold=0.2))) == []
    assert len(balance(ABC[:2], queues, Settings(MASTERS, threshold=0.1)).moves) == 2  # 54 and 46 are 16 % apart.


def test_a_heavy_queue_that_would_only_change_sides_stays() -> None:
    queues = [queue(1, "a", messages=1000), queue(2, "b", messages=10)]
    assert moves(balance(ABC[:2], queues, Settings(MESSAGES))) == []


@pytest.mark.parametrize("held", [{"pinned": True}, {"recent": True}])
def test_what_is_held_stays(held: dict[str, Any]) -> None:
    queues = [queue(number, "a", **held) for number in range(6)]
    assert moves(balance(ABC, queues, Settings(MASTERS))) == []


def test_so_many_moves_at_the_most() -> None:
    queues = [queue(number, "a") for number in range(90)]
    assert len(balance(ABC, queues, Settings(MASTERS, moves_max=7)).moves) == 7


# -- Properties ----------------------------------------------------------------------------------------------------

NAMES = "abcd"
nodes_ = st.tuples(
    *(
        st.builds(
            NodeState,
            st.just(name),
            running=st.sampled_from((True, True, True, False)),
            draining=st.sampled_from((False, False, False, True)),
            capacity=st.sampled_from((0.5, 1.0, 1.0, 3.0)),
            connections=st.integers(0, 50),
            labels=st.sampled_from(({"zone": "x"}, {"zone": "y"}, {})),
        )
        for name in NAMES
    )
)
names_ = st.sampled_from(NAMES)


@st.composite
def queues_(draw: st.DrawFn) -> list[QueueState]:
    found = []
    for number in range(draw(st.integers(0, 25))):
        master = draw(names_)
        others = draw(st.none() | st.frozensets(names_))
        found.append(
            QueueState(
                number,
                "/",
                f"q{number}",
                master,
                messages=draw(st.integers(0, 5) | st.integers(0, 10_000)),
                consumers=draw(st.integers(0, 20)),
                in_sync=None if others is None else tuple(sorted({master, *others})),
                nodes=draw(st.none() | st.none() | st.frozensets(names_, min_size=1)),
                label=draw(st.none() | st.none() | st.just(("zone", "x"))),
                pinned=draw(st.integers(0, 9)) == 0,
                recent=draw(st.integers(0, 9)) == 0,
            )
        )
    return found


settings_ = st.builds(
    Settings, st.sampled_from(STRATEGIES), st.sampled_from((0.0, 0.05, 0.1, 0.5)), st.just(100_000), st.integers(0, 9)
)


@settings(max_examples=40)
@given(nodes_, queues_(), settings_)
def test_it_never_swings(nodes: tuple[NodeState, ...], queues: list[QueueState], wanted: Settings) -> None:
    plan = balance(nodes, queues, wanted)
    after = balance(nodes, applied(queues, plan), wanted)
    assert after.moves == ()
    assert after.before == plan.after


@settings(max_examples=40)
@given(nodes_, queues_(), settings_, st.integers(1, 3))
def test_pieces_of_a_plan_come_to_an_end(
    nodes: tuple[NodeState, ...], queues: list[QueueState], wanted: Settings, at_once: int
) -> None:
    for _ in range(1_000):
        plan = balance(nodes, queues, wanted._replace(moves_max=at_once))
        assert len(plan.moves) <= at_once
        if not plan.moves:
            return
        queues = applied(queues, plan)
    raise AssertionError("it goes on and on")


@settings(max_examples=40)
@given(nodes_, queues_(), settings_)
def test_only_allowed_moves(nodes: tuple[NodeState, ...], queues: list[QueueState], wanted: Settings) -> None:
    there, known = {one.id: one for one in queues}, {node.name: node for node in nodes}
    plan = balance(nodes, queues, wanted)
    assert len({move.id for move in plan.moves}) == len(plan.moves)
    for move in plan.moves:
        one, target = there[move.id], known[move.target]
        assert not one.pinned and not one.recent and known[one.master].running and move.source == one.master
        assert target.running and not target.draining and move.target != move.source
        assert one.in_sync is None or move.target in one.in_sync
        assert one.nodes is None or move.target in one.nodes
        assert one.label is None or target.labels.get("zone") == "x"


@settings(max_examples=40)
@given(nodes_, queues_(), settings_)
def test_loads_come_closer(nodes: tuple[NodeState, ...], queues: list[QueueState], wanted: Settings) -> None:
    plan = balance(nodes, queues, wanted)
    capacity = {node.name: node.capacity if wanted.strategy == WEIGHTED else 1.0 for node in nodes}

    def unevenness(loads: dict[str, float]) -> float:
        return sum(load**2 / capacity[name] for name, load in loads.items())

    if plan.moves:
        assert unevenness(dict(plan.after)) < unevenness(dict(plan.before))


def test_many_queues_are_planned_in_steps_that_do_not_look_at_all_of_them() -> None:
    queues = [queue(number, "a", "abc", messages=number % 1000) for number in range(20_000)]
    plan = balance(ABC, queues, Settings(MASTERS, moves_max=2_000))
    assert len(plan.moves) == 2_000


def test_mirrored_queues_are_planned_without_looking_at_those_that_cannot_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a queue may go to a node is asked once for each of its members, however many steps there are."""
    asked: list[str] = []

    def counted(one: QueueState, target: NodeState | None, name: str) -> str | None:
        asked.append(name)
        return refusal(one, target, name)

    monkeypatch.setattr(rebalancing, "refusal", counted)
    count = 2_000
    queues = [queue(number, "abcd"[number % 4], "abcd"[number % 4] + "abcde"[number % 5]) for number in range(count)]
    plan = balance([NodeState(name) for name in "abcde"], queues, Settings(MASTERS, threshold=0))
    assert len(plan.moves) == count // 5
    assert len(asked) <= 2 * count


@settings(max_examples=20)
@given(nodes_, queues_(), st.sampled_from((MASTERS, MESSAGES)))
def test_a_step_is_the_best_of_all(nodes: tuple[NodeState, ...], queues: list[QueueState], strategy: str) -> None:
    """Compared with all moves of one queue that are allowed."""
    plan = balance(nodes, queues, Settings(strategy, threshold=0, moves_max=1))
    known = {node.name: node for node in nodes}

    def unevenness(loads: dict[str, float]) -> float:
        return sum(load**2 for load in loads.values())

    best = unevenness(dict(plan.before))
    for one in queues:
        weight = 1 if strategy == MASTERS else one.messages
        if one.pinned or one.recent or not known[one.master].running:
            continue
        for name, target in known.items():
            if refusal(one, target, name) is None and name != one.master:
                loads = dict(plan.before)
                loads[one.master] -= weight
                loads[name] += weight
                best = min(best, unevenness(loads))
    assert unevenness(dict(plan.after)) == best


# -- Plans from files ----------------------------------------------------------------------------------------------


def planned(*moves: dict[str, Json]) -> dict[str, Json]:
    return {"version": 1, "strategy": "forecast", "moves": [*moves], "before": {}, "after": {}}


def test_a_plan_is_carried_out_as_far_as_it_still_holds() -> None:
    queues = [queue(1, "a", "ab"), queue(2, "b"), queue(3, "a", "ab"), queue(4, "b")]
    document = planned(
        {"vhost": "/", "queue": "q1", "from": "a", "to": "b", "why": "less to do"},
        {"vhost": "/", "queue": "q2", "from": "a", "to": "c", "why": "…"},
        {"vhost": "/", "queue": "q3", "from": "a", "to": "c"},
        {"vhost": "/", "queue": "q4", "to": "b"},
        {"vhost": "/", "queue": "gone", "from": "a", "to": "b"},
    )
    plan = from_file(document, ABC, queues, 100)
    assert moves(plan) == ["q1: a → b"] and plan.moves[0].why == "less to do"
    assert plan.strategy == "plan (forecast)"
    assert [(one.queue, one.why) for one in plan.stays] == [
        ("q2", "it is at b, and no longer at a"),
        ("q3", "node c has no synchronised mirror of it"),
        ("gone", "there is no such queue that could be moved"),
    ]


def test_a_dry_run_is_a_plan_for_a_file() -> None:
    queues = [queue(number, "a", "abc") for number in range(6)]
    plan = balance(ABC, queues, Settings(MASTERS))
    assert from_file(plan.as_json(), ABC, queues, 100).moves == plan.moves


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ([], 'a plan is an object with "version": 1 and "moves"'),
        ({"version": 2, "moves": []}, 'a plan is an object with "version": 1 and "moves"'),
        ({"version": 1, "moves": {}}, '"moves" must be a list'),
        ({"version": 1, "moves": [{"vhost": "/"}]}, 'move 1 must be an object with "vhost", "queue" and "to"'),
        (
            {"version": 1, "moves": [{"vhost": "/", "queue": "q", "to": to} for to in "bc"]},
            "move 2 is of a queue that another move is of: q in /",
        ),
        ({"version": 1, "moves": [7]}, 'move 1 must be an object with "vhost", "queue" and "to"'),
    ],
)
def test_what_is_no_plan_is_refused(document: Json, problem: str) -> None:
    with pytest.raises(BadPlan, match="^" + problem):
        from_file(document, ABC, [], 100)


def test_why_a_queue_cannot_go_somewhere() -> None:
    assert refusal(queue(1, "a"), None, "z") == "node z is not in the cluster"
    assert refusal(queue(1, "a"), NodeState("b", running=False), "b") == "node b is not running"
    assert refusal(queue(1, "a"), NodeState("b", draining=True), "b") == "node b is being drained"
    assert refusal(queue(1, "a", nodes=frozenset("a")), ABC[1], "b") == "its policy does not name node b"
    assert (
        refusal(queue(1, "a", label=("zone", "x")), ABC[1], "b")
        == "its policy asks for a node with zone = x, which b is not"
    )
