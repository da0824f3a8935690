"""A network in user space: each node has its own, and all packets between them pass through this program.

    python -m faults.machines.switch NAME SUBNET NODES      one command in JSON per line of stdin, each answered

    host ── tun (SUBNET.254) ──┐
                            switch ── tun ── namespace NAME-1 (SUBNET.1)
                               └───── tun ── namespace NAME-2 (SUBNET.2) …

The kernel's own emulation of bad networks (netem) is missing in many kernels; TUN devices are in almost all. What is
done to packets can differ for each direction of each pair:

    {"do": "set", "from": [1], "to": [2, 3], "loss": 0.2, "delay_ms": 300, "jitter_ms": 100, "copies": 0.01}
    {"do": "cut", "from": [1], "to": [2]}     the same as a loss of 1
    {"do": "heal"}                            all links are as at the beginning
    {"do": "count"}                           answers how many packets were passed on, lost, delayed and doubled

With a jitter packets overtake each other, as they do in networks. The host, with clients on it, has the number 254. No
error is reported to anybody: packets leave and arrive nowhere.
"""

from __future__ import annotations

import fcntl
import heapq
import json
import os
import random
import selectors
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 1, 0x1000
HOST = 254
MTU = 8_000
QUEUED_MAX = 20_000  # Packets that are delayed; beyond that they are lost, as in a switch whose buffers are full.
BATCH = 64


@dataclass
class Rule:
    """What happens to packets of one direction of a link."""

    loss: float = 0.0
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    copies: float = 0.0


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def open_device(name: str) -> int:
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    return descriptor


class Switch:
    """The devices, the rules, and packets that are on their way."""

    def __init__(self, seed: int = 0) -> None:
        self.devices: dict[int, int] = {}
        self.rules: dict[tuple[int, int], Rule] = {}
        self.rng = random.Random(seed)
        self.delayed: list[tuple[float, int, int, bytes]] = []  # Due time, a number, the target, the packet.
        self.counts = dict.fromkeys(("passed", "lost", "delayed", "doubled"), 0)
        self._number = 0

    def on_packets(self, source: int) -> None:
        """Passes on what a device has, up to a batch."""
        descriptor = self.devices[source]
        for _ in range(BATCH):
            try:
                packet = os.read(descriptor, 1 << 16)
            except BlockingIOError:
                return
            if packet[0] >> 4 == 4:  # IPv6 says things nobody asked for.
                self._pass_on(source, packet[19], packet)

    def _pass_on(self, source: int, target: int, packet: bytes) -> None:
        if target not in self.devices:
            return
        rule = self.rules.get((source, target))
        if rule is None:
            self._send(target, packet)
            return
        copies = 1 + (rule.copies > 0 and self.rng.random() < rule.copies)
        self.counts["doubled"] += copies - 1
        for _ in range(copies):
            if (rule.loss and self.rng.random() < rule.loss) or len(self.delayed) >= QUEUED_MAX:
                self.counts["lost"] += 1
            elif rule.delay_ms or rule.jitter_ms:
                wait_ms = max(0.0, rule.delay_ms + self.rng.uniform(-rule.jitter_ms, rule.jitter_ms))
                self.counts["delayed"] += 1
                self._number += 1
                heapq.heappush(self.delayed, (time.monotonic() + wait_ms / 1000, self._number, target, packet))
            else:
                self._send(target, packet)

    def _send(self, target: int, packet: bytes) -> None:
        try:
            os.write(self.devices[target], packet)
            self.counts["passed"] += 1
        except (BlockingIOError, OSError):
            self.counts["lost"] += 1  # The device is down or its queue is full.

    def send_due(self) -> float | None:
        """Sends packets whose time has come; returns in how many seconds the next one is due."""
        now = time.monotonic()
        while self.delayed and self.delayed[0][0] <= now:
            _, _, target, packet = heapq.heappop(self.delayed)
            self._send(target, packet)
        return self.delayed[0][0] - now if self.delayed else None

    def obey(self, command: dict[str, Any]) -> dict[str, int]:
        """Performs a command; returns the counts."""
        action = command.pop("do")
        if action == "heal":
            self.rules.clear()
        elif action in ("set", "cut"):
            sources, targets = command.pop("from"), command.pop("to")
            rule = Rule(loss=1.0) if action == "cut" else Rule(**command)
            self.rules |= {(source, target): rule for source in sources for target in targets if source != target}
        elif action != "count":
            raise ValueError(f"no such command: {action}")
        return dict(self.counts)

    def close(self) -> None:
        for descriptor in self.devices.values():
            os.close(descriptor)


def build(name: str, subnet: str, size: int, switch: Switch, spaces: list[str]) -> None:
    """Makes namespaces and devices. Names of namespaces that were made are added to `spaces`."""
    for number in (*range(1, size + 1), HOST):
        device = f"{name}h" if number == HOST else f"{name}n{number}"
        switch.devices[number] = open_device(device)
        within: tuple[str, ...] = ()
        if number != HOST:
            space = f"{name}-{number}"
            ip("netns", "add", space)
            spaces.append(space)
            ip("link", "set", device, "netns", space)
            within = ("-n", space)
            ip(*within, "link", "set", "lo", "up")
        ip(*within, "addr", "add", f"{subnet}.{number}/24", "dev", device)
        ip(*within, "link", "set", device, "mtu", str(MTU), "up")


def run(switch: Switch) -> None:
    """Passes packets on until stdin ends."""
    with selectors.DefaultSelector() as selector:
        for number, descriptor in switch.devices.items():
            selector.register(descriptor, selectors.EVENT_READ, number)
        selector.register(sys.stdin, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select(switch.send_due()):
                if key.data is not None:
                    switch.on_packets(key.data)
                elif line := sys.stdin.readline():
                    print(json.dumps(switch.obey(json.loads(line))), flush=True)
                else:
                    return


def main() -> int:
    name, subnet, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
    switch = Switch()
    spaces: list[str] = []
    try:
        build(name, subnet, size, switch, spaces)
        print(json.dumps({"ready": name}), flush=True)
        run(switch)
    finally:
        switch.close()
        for space in spaces:
            ip("netns", "del", space)
    return 0


if __name__ == "__main__":
    sys.exit(main())
