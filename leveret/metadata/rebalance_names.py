"""The words of `rebalancing`, for whoever needs nothing else of it: leveretctl's help is to be there at once."""

from __future__ import annotations

from typing import Final

MASTERS: Final = "least-masters"
MESSAGES: Final = "least-messages"
CONNECTIONS: Final = "least-connections"
WEIGHTED: Final = "weighted"
RANDOM: Final = "random"
ROUND_ROBIN: Final = "round-robin"
STRATEGIES: Final = (MASTERS, MESSAGES, CONNECTIONS, WEIGHTED, RANDOM, ROUND_ROBIN)
PLAN: Final = "plan"  # Which is no strategy, but what somebody has worked out with another.
TIMER, APPOINT, ON_DEMAND, RUN = TRIGGERS = ("timer", "appoint", "on-demand", "run")


def short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"
