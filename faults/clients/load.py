"""Clients that go on, at one node or another, until they are told to halt."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from faults.clients.amqp import HEARTBEAT_S, Amqp, ChannelError, Lost
from faults.history.entries import Writer

PATIENCE_S = 6.0  # After which a client takes a node that does not answer for dead.
AGAIN_S = 0.1
BEHIND = 20_000  # Messages; some windows of the largest size.


class Where(NamedTuple):
    """Where a node takes clients."""

    host: str
    port: int


class Board:
    """What has been confirmed and delivered so far, for the runner to know when all is drained. Nobody judges by it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.due: set[tuple[str, str, int]] = set()
        self.early: set[tuple[str, str, int]] = set()  # Delivered, and not confirmed yet.
        self.confirmed = self.delivered = self.held = self.registered = self.read = 0

    def on_confirmed(self, messages: Sequence[tuple[str, str, int]]) -> None:
        with self.lock:
            self.confirmed += len(messages)
            for message in messages:
                if message in self.early:
                    self.early.discard(message)
                else:
                    self.due.add(message)

    def on_delivered(self, message: tuple[str, str, int]) -> None:
        with self.lock:
            self.delivered += 1
            if message in self.due:
                self.due.discard(message)
            else:
                self.early.add(message)

    def is_behind(self) -> bool:
        """Returns whether consumers have so much to do that publishers should wait."""
        return len(self.due) > BEHIND

    def is_drained(self) -> bool:
        with self.lock:
            return not self.due


class Client(threading.Thread):
    """A client in a thread. `pick` chooses the node of each connection."""

    heartbeat_s = HEARTBEAT_S
    success = ""  # The count on the board that tells of its successes.
    drains = False  # Goes on until all that is due has come.

    def __init__(self, name: str, folder: Path, board: Board, pick: Callable[[], Where]) -> None:
        super().__init__(name=name, daemon=True)
        self.history = Writer(folder, name)
        self.board, self.pick = board, pick
        self.halt = threading.Event()
        self.sessions = 0
        self.failure: BaseException | None = None

    @property
    def session(self) -> str:
        """Returns the name of the client on its present connection."""
        return f"{self.name}.{self.sessions}"

    def run(self) -> None:
        try:
            while not self.halt.is_set():
                try:
                    where = self.pick()
                    with Amqp(where.host, where.port, PATIENCE_S, self.heartbeat_s) as client:
                        self.sessions += 1
                        self.work(client)
                except Lost:
                    self.halt.wait(AGAIN_S)
                except ChannelError as error:
                    self.on_channel_error(error)
                    self.halt.wait(AGAIN_S)
        except BaseException as error:  # The runner tells of it.
            self.failure = error
        finally:
            self.history.close()

    def on_channel_error(self, error: ChannelError) -> None:
        """A queue may be unreachable for a while, so the client tries again."""

    def work(self, client: Amqp) -> None:
        raise NotImplementedError


def picker(rng: random.Random, places: Sequence[Where]) -> Callable[[], Where]:
    """Returns a function that chooses a node, and another one than last time if there is one."""
    last: list[Where] = []

    def pick() -> Where:
        others = [place for place in places if place not in last] or list(places)
        last[:] = [rng.choice(others)]
        return last[0]

    return pick
