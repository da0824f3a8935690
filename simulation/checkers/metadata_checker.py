"""Checks what the nodes of a cluster agree on, from outside.

After each pass of a node's loop, its term, its leader, its applied index and its metadata are read.

    one leader      no two nodes are the leader in the same term
    forwards        within a life, neither the term nor the applied index goes back
    equal           nodes with the same applied index have the same metadata, in all the run
    kept            at the end, all nodes have applied as much as any node ever had
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leveret.node.cluster.membership import Cluster


class MetadataChecker:
    def __init__(self, fail: Callable[[str], None]) -> None:
        self.fail = fail
        self.leaders: dict[int, str] = {}  # By term.
        self.states: dict[int, tuple[str, str]] = {}  # By applied index: digest, and the node that showed it first.
        self.seen: dict[str, tuple[int, int]] = {}  # Term and applied index that a node showed last.
        self.leading: dict[str, bool] = {}
        self.clusters: dict[str, Cluster] = {}
        self.applied_max = 0

    def on_started(self, name: str) -> None:
        self.leading[name] = False

    def leads(self, name: str) -> bool:
        return self.leading.get(name, False)

    def observe(self, name: str, cluster: Cluster) -> None:
        raft = cluster.raft
        term, applied = raft.term, cluster.applied_index
        leading = raft.is_leader
        if self.clusters.get(name) is not cluster:  # The app was started again.
            self.clusters[name] = cluster
            self.seen.pop(name, None)
        before = self.seen.get(name)
        if leading:
            first = self.leaders.setdefault(term, name)
            if first != name:
                self.fail(f"{first} and {name} both lead in term {term}")
        self.leading[name] = leading
        if before == (term, applied):
            return
        if before is not None and (term < before[0] or applied < before[1]):
            self.fail(f"{name} went back from term and index {before} to {(term, applied)}")
        self.seen[name] = (term, applied)
        if before is None or applied != before[1]:
            self._compare(name, applied, cluster)

    def _compare(self, name: str, applied: int, cluster: Cluster) -> None:
        self.applied_max = max(self.applied_max, applied)
        digest = hashlib.blake2b(cluster.metadata.snapshot(), digest_size=8).hexdigest()
        known, by = self.states.setdefault(applied, (digest, name))
        if known != digest:
            self.fail(f"{name} and {by} have applied {applied} entries and differ in their metadata")

    def is_kept(self, clusters: list[Cluster]) -> bool:
        return all(cluster.applied_index >= self.applied_max for cluster in clusters)

    def standing(self, clusters: list[Cluster]) -> str:
        applied = ", ".join(f"{cluster.me.name} has applied {cluster.applied_index}" for cluster in clusters)
        return f"{applied}, and {self.applied_max} were agreed on"

    def summary(self) -> str:
        return f"{len(self.leaders)} terms, {self.applied_max} entries"
