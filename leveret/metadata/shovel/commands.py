"""Commands about who runs what. `leveret.metadata.assignments` applies them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AssignRow:
    """Let a node run something. Refused, row by row, if `epoch` is no longer that of the assignment."""

    component: str
    vhost: str
    name: str
    epoch: int
    node: str


@dataclass(frozen=True, slots=True)
class AssignWork:
    """Let nodes run what nobody runs, or what a lost node ran. The leader proposes it."""

    rows: tuple[AssignRow, ...]


@dataclass(frozen=True, slots=True)
class LinkRow:
    """A federation link that there should be, made from what has this digest. An empty one: the link ends."""

    vhost: str
    name: str
    digest: str


@dataclass(frozen=True, slots=True)
class SetLinks:
    """Make federation links, have them begin anew, or end them. The leader proposes it when policies, upstreams,
    exchanges or queues have changed."""

    rows: tuple[LinkRow, ...]


@dataclass(frozen=True, slots=True)
class PauseWork:
    """Stop something, or let it go on. It stays so over restarts."""

    component: str
    vhost: str
    name: str
    paused: bool


@dataclass(frozen=True, slots=True)
class RestartWork:
    """Have something run anew, by whichever node the leader chooses."""

    component: str
    vhost: str
    name: str


@dataclass(frozen=True, slots=True)
class ReportWork:
    """Note how many messages were moved in all. Refused if another worker has taken over. `done`: the work has ended by
    itself, and its parameter goes."""

    component: str
    vhost: str
    name: str
    epoch: int
    forwarded: int
    done: bool = False
