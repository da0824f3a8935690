"""Memory, disk and file descriptor alarms: how much is used, and whether publishers are blocked.

An alarm is a state, not an event: it is set while a limit is exceeded, and cleared otherwise. The figures of the system
come from functions that are arguments, so that a test can pretend to be a machine with 10 MB.

Nodes tell each other of their alarms, and publishers are blocked at all of them, as in RabbitMQ: a message published at
one node may be for a queue at another.

File descriptors are a third resource, of another kind: short of them, a node accepts no new connections, and goes on
serving those it has. Descriptors for the files that it has to write must be left (see also
`leveret.storage.segments.disk`).
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
    """Returns the greatest number of client connections for a limit of descriptors: RabbitMQ's rule, which leaves a
    hundred and a tenth for files, other nodes, HTTP."""
    if descriptors_max < 0:
        return UNLIMITED
    return max(int((descriptors_max - 100) * 0.9 - 2), 1)


def clients_limit(descriptors_max: int) -> int:
    """Returns the greatest number of connections to the management port, which is also that to the Prometheus port:
    each a third of the descriptors that clients leave, so that files and other nodes have theirs."""
    if descriptors_max < 0:
        return HTTP_MAX
    return min(max((descriptors_max - sockets_limit(descriptors_max)) // 3, HTTP_MIN), HTTP_MAX)


class Alarms:
    """The alarms of this node, and those that other nodes have told it of."""

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
        self.disk_full = False  # A write failed for lack of space, whatever the system says is free.
        self.by_hand: set[str] = set()  # Alarms that an operator has set, for a test.
        self.crowded = False  # There are as many clients as descriptors allow for.
        self.others: dict[str, frozenset[str]] = {}  # The alarms of other nodes.
        self.rooms: dict[str, int] = {}  # What each node in contact has said may be written there: see `room_bytes`.
        self._told: set[tuple[str, str]] = set()  # The alarms (resource and node) that the log says are set.

    def check(self) -> None:
        self.memory_used_bytes = self._memory_used()
        self.disk_free_bytes = self._disk_free()
        self.memory = self.memory_used_bytes > self.memory_limit_bytes
        self.disk = self.disk_free_bytes < self.disk_limit_bytes

    def own(self) -> frozenset[str]:
        """Returns the resources of this node that are short."""
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
        """Returns the changes since the last call, as RabbitMQ's lines for the log of the node of that name."""
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
        """Returns whether one more client may connect, if there are so many. Called also when one has disconnected, so
        that the log says it when the alarm is cleared. The alarm is cleared only a twentieth below the limit: otherwise
        each client that leaves and comes would add two lines to the log."""
        limit = sockets_limit(descriptors_max)
        if self.crowded and clients < limit - limit // 20:
            self.crowded = False
            logger.warning("file descriptor limit alarm cleared")
        elif not self.crowded and clients >= limit:
            self.crowded = True
            logger.warning("file descriptor limit alarm set.\n\n%s\n", lines(NO_ENTRY))
        return not self.crowded

    def room_bytes(self) -> int:
        """Returns how much may be written here until the disk alarm is set, rounded down by up to a sixteenth: other
        nodes are told of each change, and should not be told of every block."""
        room = 0 if "disk" in self.own() else max(self.disk_free_bytes - self.disk_limit_bytes, 0)
        rest = max(room.bit_length() - 5, 0)
        return room >> rest << rest

    def reason(self) -> str | None:
        """Returns the reason for connection.blocked; None if no alarm is set at any node."""
        short = self.own().union(*self.others.values())
        return f"low on {' & '.join(sorted(short, reverse=True))}" if short else None


def resident_bytes() -> int:
    """Returns how much of the machine's memory the process occupies."""
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()
    except FileNotFoundError:  # No Linux: the peak is the best that can be had without another library.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def total_memory_bytes() -> int:
    """Returns the memory of the machine, or the limit of the control group if that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/sys/fs/cgroup/memory.max") as limit:
            text = limit.read().strip()
    except OSError:
        return total
    return min(total, int(text)) if text.isdigit() else total
