"""Control commands that rebalance queues. Any node can be asked: the one that leads the cluster does it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from leveret.base.exit_codes import UNAVAILABLE, USAGE
from leveret.metadata.rebalancing import PLAN, STRATEGIES
from leveret.node.admin.common.command import ANYTHING, FLAG, NUMBER, RUNNING, TEXT, Commands, NoAnswer, Refused
from leveret.node.admin.nodes.rebalancer import KINDS, Wanted
from leveret.node.admin.nodes.rebalancer import local_balance as balance_here

if TYPE_CHECKING:
    from leveret.node.admin.dispatch import Control

COMMANDS = Commands()

POLL_S: Final = 0.05
MOVES_MAX: Final = 100_000
WANTED: Final = {
    "strategy": TEXT.or_none(),
    "dry_run": FLAG.or_none(),
    "kind": TEXT.or_none(),
    "vhosts": TEXT.or_none(),
    "queues": TEXT.or_none(),
    "source": TEXT.or_none(),
    "target": TEXT.or_none(),
    "plan": ANYTHING.or_none(),
    "moves_max": NUMBER.or_none(),
}


def _wanted(asked: dict[str, Any]) -> Wanted:
    """Raises Refused."""
    wanted = Wanted(**{name: value for name, value in asked.items() if value is not None})
    if wanted.strategy is not None and wanted.strategy not in (*STRATEGIES, PLAN):
        raise Refused(USAGE, f"there is no strategy '{wanted.strategy}'; there are {', '.join((*STRATEGIES, PLAN))}")
    if wanted.kind not in KINDS:
        raise Refused(USAGE, f"Error: invalid queue type '{wanted.kind}'; there are {', '.join(KINDS)}")
    if wanted.moves_max is not None and not 0 < wanted.moves_max <= MOVES_MAX:
        raise Refused(USAGE, f"the number of moves is from 1 to {MOVES_MAX}")
    return wanted


@COMMANDS.add(RUNNING, **WANTED)
async def rebalance(control: Control, **asked: Any) -> Any:
    """Rebalances queues, and returns the plan and its results."""
    wanted = _wanted(asked)
    leader = control.node.cluster.leader
    if leader is None:
        raise Refused(UNAVAILABLE, "the cluster has no leader: is a majority of its nodes running?")
    if leader == control.name:
        return await control.rebalancer.run(wanted)
    return await _at_leader(control, leader, {name: value for name, value in asked.items() if value is not None})


async def _at_leader(control: Control, leader: str, asked: dict[str, Any]) -> Any:
    """Has the leader rebalance. That may take long, so it is begun there, and its outcome is asked for."""
    control.rebalancer.asked += 1
    ticket = f"rebalance.{control.node.broker.run[:16]}.{control.rebalancer.asked}"
    try:
        await control.at(leader, "begin", {"ticket": ticket, "command": "local_rebalance", "arguments": asked})
        while True:
            outcome = await control.at(leader, "outcome", {"ticket": ticket})
            if outcome["answer"] is not None:
                break
            control.progress = outcome["progress"]
            await asyncio.sleep(POLL_S)
    except NoAnswer as error:
        raise Refused(UNAVAILABLE, f"{error}; moves that it has begun end by themselves") from None
    answer = outcome["answer"]
    if "error" in answer:
        raise Refused(answer["error"]["code"], answer["error"]["text"], answer["error"]["form"])
    return answer["ok"]


@COMMANDS.add(RUNNING, **WANTED)
async def local_rebalance(control: Control, **asked: Any) -> Any:
    """Rebalances queues at the leader."""
    if not control.rebalancer.leads():
        raise Refused(UNAVAILABLE, "this node does not lead the cluster any more; try again")
    return await control.rebalancer.run(_wanted(asked))


@COMMANDS.add(RUNNING)
async def rebalance_status(control: Control) -> Any:
    """Returns the leader's status of rebalancing; without a leader, this node's."""
    leader = control.node.cluster.leader
    if leader not in (None, control.name):
        try:
            return await control.at(leader, "local_rebalance_status", {})
        except NoAnswer:
            pass  # The leader is gone: this node's own status is returned.
    return control.rebalancer.status()


@COMMANDS.add(RUNNING)
async def local_rebalance_status(control: Control) -> Any:
    return control.rebalancer.status()


@COMMANDS.add(RUNNING)
async def local_balance(control: Control) -> Any:
    return balance_here(control)
