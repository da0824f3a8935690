"""The names of `rebalancing`'s strategies, in a module of their own so that leveretctl's help starts quickly."""

from __future__ import annotations

from typing import Final

MASTERS: Final = "least-masters"
MESSAGES: Final = "least-messages"
CONNECTIONS: Final = "least-connections"
WEIGHTED: Final = "weighted"
RANDOM: Final = "random"
ROUND_ROBIN: Final = "round-robin"
STRATEGIES: Final = (MASTERS, MESSAGES, CONNECTIONS, WEIGHTED, RANDOM, ROUND_ROBIN)
PLAN: Final = "plan"  # Not a strategy: a plan from a file.
TIMER, APPOINT, ON_DEMAND, RUN = TRIGGERS = ("timer", "appoint", "on-demand", "run")


def short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"
