"""Memory and disk: how much is used, and whether publishers must wait.

An alarm is a state, not an event: it is set when a limit is crossed and cleared when it is not. What is read from the
system comes in through functions, so that a test can be a machine with 10 MB.

Nodes tell each other of their alarms, and publishers wait at all of them, as in RabbitMQ: what is published at one node
may well be for another.

Descriptors are a third resource, of another kind: short of them, a node lets nobody new in, and serves on whoever is
there. Files that it has to write must not want for one (see also `log.disk`).
"""

from __future__ import annotations

import logging
import os
import resource
from collections.abc import Callable

from leveret.node.system.logs import lines

logger = logging.getLogger("leveret")

UNLIMITED = 1 << 30
RESOURCES = ("memory", "disk")
HTTP_MIN, HTTP_MAX = 16, 1_024
STARS = "*" * 58
BANNER = f"{STARS}\n*** Publishers will be blocked until this alarm clears ***\n{STARS}"
NO_ENTRY = f"{STARS}\n*** New connections will not be accepted until this alarm clears ***\n{STARS}"


def sockets_limit(descriptors_max: int) -> int:
    """How many clients there may be, if there may be so many descriptors: RabbitMQ's rule, which leaves a hundred and
    a tenth for files, other nodes, HTTP."""
    if descriptors_max < 0:
        return UNLIMITED
    return max(int((descriptors_max - 100) * 0.9 - 2), 1)


def doors_limit(descriptors_max: int) -> int:
    """How many connections there may be at the management port, and as many at that of Prometheus: each a third of what
    clients leave, so that files and other nodes have theirs."""
    if descriptors_max < 0:
        return HTTP_MAX
    return min(max((descriptors_max - sockets_limit(descriptors_max)) // 3, HTTP_MIN), HTTP_MAX)


class Alarms:
    """Which resources are short."""

    def __init__(
        self,
        memory_limit_bytes: int,
        disk_limit_bytes: int,
        memory_used: Callable[[], int],
        disk_free: Callable[[], int],
    ) -> None:
        self.memory_limit_bytes = memory_limit_bytes
        self.disk_limit_bytes = disk_limit_bytes
        self._memory_used = memory_used
        self._disk_free = disk_free
        self.memory_used_bytes = 0
        self.disk_free_bytes = 0
        self.memory = False
        self.disk = False
        self.disk_full = False  # A write failed for want of space, whatever the system says is free.
        self.by_hand: set[str] = set()  # What somebody has declared short, for a drill.
        self.crowded = False  # There are as many clients as descriptors allow for.
        self.others: dict[str, frozenset[str]] = {}  # What is short at other nodes,
        self.rooms: dict[str, int] = {}  # and how many bytes those that are in contact may write: see `room_bytes`.
        self._told: set[tuple[str, str]] = set()  # Resources and nodes, as the log knows them.

    def check(self) -> None:
        self.memory_used_bytes = self._memory_used()
        self.disk_free_bytes = self._disk_free()
        self.memory = self.memory_used_bytes > self.memory_limit_bytes
        self.disk = self.disk_free_bytes < self.disk_limit_bytes

    def own(self) -> frozenset[str]:
        """What is short here."""
        resources = (("memory", self.memory), ("disk", self.disk or self.disk_full))
        return frozenset(name for name, is_short in resources if is_short) | self.by_hand

    def set_by_hand(self, resource: str) -> None:
        logger.warning("%s alarm is set by hand", resource)
        self.by_hand.add(resource)

    def clear_by_hand(self, resource: str) -> None:
        if resource in self.by_hand:
            logger.warning("%s alarm is no longer set by hand", resource)
            self.by_hand.remove(resource)

    def news(self, name: str) -> list[str]:
        """What changed since the last call, for the log of the node of that name: RabbitMQ's lines."""
        now = {(one, name) for one in self.own()} | {(one, node) for node in self.others for one in self.others[node]}
        lines = []
        for what, node in sorted(now - self._told):
            if node == name and what not in self.by_hand:
                lines.append(self._measured(what))
            lines.append(f"{what} resource limit alarm set on node {node}.\n\n{BANNER}\n")
        for what, node in sorted(self._told - now):
            if node == name:
                lines.append(self._measured(what, "clear", "sufficient"))
            lines.append(f"{what} resource limit alarm cleared on node {node}")
            if not any(one == what for one, _ in now):
                lines.append(f"{what} resource limit alarm cleared across the cluster")
        self._told = now
        return lines

    def _measured(self, what: str, memory: str = "set", disk: str = "insufficient") -> str:
        if what == "memory":
            used = f"Memory used:{self.memory_used_bytes} allowed:{self.memory_limit_bytes}"
            return f"vm_memory_high_watermark {memory}. {used}"
        return f"Free disk space is {disk}. Free bytes: {self.disk_free_bytes}. Limit: {self.disk_limit_bytes}"

    def has_room(self, clients: int, descriptors_max: int) -> bool:
        """Whether one more client may come, if there are so many. Asked also when one has gone: the line in the log
        is to be true. If each one out let one in, the log would be full of such lines; hence the difference."""
        limit = sockets_limit(descriptors_max)
        if self.crowded and clients < limit - limit // 20:
            self.crowded = False
            logger.warning("file descriptor limit alarm cleared")
        elif not self.crowded and clients >= limit:
            self.crowded = True
            logger.warning("file descriptor limit alarm set.\n\n%s\n", lines(NO_ENTRY))
        return not self.crowded

    def room_bytes(self) -> int:
        """How much may be written here until the disk alarm is set, or up to a sixteenth less: others are told each
        time that it changes, and need not hear of every block."""
        room = 0 if "disk" in self.own() else max(self.disk_free_bytes - self.disk_limit_bytes, 0)
        rest = max(room.bit_length() - 5, 0)
        return room >> rest << rest

    def reason(self) -> str | None:
        """What connection.blocked says; None if nothing is short anywhere."""
        short = self.own().union(*self.others.values())
        return f"low on {' & '.join(sorted(short, reverse=True))}" if short else None


def resident_bytes() -> int:
    """What the process occupies of the machine's memory."""
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()
    except FileNotFoundError:  # No Linux: the peak is the best that can be had without another library.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def total_memory_bytes() -> int:
    """Of the machine, or of the control group that it may be limited to."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/sys/fs/cgroup/memory.max") as limit:
            text = limit.read().strip()
    except OSError:
        return total
    return min(total, int(text)) if text.isdigit() else total
