"""Runs a plan in the world that it is for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulation.links.federated import FederatedWorld
from simulation.links.federation_between import FederationBetween
from simulation.links.shovelled import ShovelledWorld
from simulation.links.shovels_between import ShovelsBetween
from simulation.world import World, play_through

if TYPE_CHECKING:
    from simulation.links.linked import LinkedWorld
    from simulation.plan import Plan


def new_linked_world(plan: Plan, traced: bool = False) -> LinkedWorld:
    if plan.two_clusters:
        return (FederationBetween if plan.links == "federation" else ShovelsBetween)(plan, traced)
    return (FederatedWorld if plan.links == "federation" else ShovelledWorld)(plan, traced)


def new_world(plan: Plan, traced: bool = False) -> World:
    return new_linked_world(plan, traced) if plan.links else World(plan, traced)


def run(plan: Plan) -> LinkedWorld:
    """Plays a plan with links. Raises Violation, with the command that replays it."""
    world = new_linked_world(plan)
    play_through(world)
    return world
