"""The record of who runs what. A change replaces a record by another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

SHOVEL: Final = "shovel"  # The component of its parameters.


class WorkKey(NamedTuple):
    """What is run, by one node of the cluster at a time: the component, the vhost and the name of its parameter."""

    component: str
    vhost: str
    name: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """Which node runs something, and since which epoch.

    `epoch` grows with each change that a worker must notice: another node, another value, a restart. No two
    assignments ever have the same. `node` is empty if nobody runs it, because it is paused or the leader has not
    chosen yet. `user` set the parameter; empty: an operator did, by leveretctl or a file. `forwarded` is how many
    messages were moved, as far as a worker has reported.
    """

    component: str
    vhost: str
    name: str
    epoch: int
    node: str = ""
    user: str = ""
    paused: bool = False
    forwarded: int = 0

    @property
    def key(self) -> WorkKey:
        return WorkKey(self.component, self.vhost, self.name)
