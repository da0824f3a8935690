"""The record of who runs what. A change replaces a record by another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

SHOVEL: Final = "shovel"  # The component of its parameters.
LINK: Final = "federation-link"  # It has no parameters: see `leveret.metadata.federation`.
LINKS_MAX: Final = 2_000  # Of the whole cluster: each has a connection to another broker.


class WorkKey(NamedTuple):
    """What is run, by one node of the cluster at a time: the component, the vhost and the name of its parameter, or of
    a federation link."""

    component: str
    vhost: str
    name: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """Which node runs something, and since which epoch.

    `epoch` grows with each change that a worker must notice: another node, another value, a restart. No two
    assignments ever have the same. `node` is empty if nobody runs it, because it is paused or the leader has not
    chosen yet. `user` set the parameter; empty: an operator did, by leveretctl or a file. `forwarded` is how many
    messages were moved, as far as a worker has reported. `digest` stands for what a federation link was made from.
    """

    component: str
    vhost: str
    name: str
    epoch: int
    node: str = ""
    user: str = ""
    paused: bool = False
    forwarded: int = 0
    digest: str = ""

    @property
    def key(self) -> WorkKey:
        return WorkKey(self.component, self.vhost, self.name)
