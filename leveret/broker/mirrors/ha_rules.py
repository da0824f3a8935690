"""Applies a queue's `ha-*` rules (`leveret.metadata.rules.ha_policy`) to this node's copy of it, whenever they change.

Most of them are options of the ring's member, set whenever they change. Three depend on more than the policy:

**Promotion of unsynchronised mirrors.** With `ha-promote-on-failure: always`, a mirror is promoted whose master has
*failed*: its link was lost, it had not said farewell, and no other node has a link to it any more. Where one has, only
a cable is broken: the master goes on, and with it the messages that only it holds. Therefore nodes tell each other
which links they have, whenever that changes, and a mirror that lacks messages waits until all nodes it reaches have
said so.

A node that stops in good order tells all others before it goes, and only `ha-promote-on-shutdown` lets one of its
unsynchronised mirrors become master: the node makes that mirror master itself, and waits for a mirror that has just
started to say what it has. The farewell names the index of the metadata that the node had, so that others know when
they have applied all of it. A copy that was just started has seen no node fail; so after all nodes were stopped and
some are back, nothing is promoted whose master will return. Which masters have failed is forgotten with the next epoch.

Before it stops, it hands over the queues that it leads: see `hand_overs`.

**Windows.** An asynchronous mirror that is further behind than its queue's window holds up confirms and publishers
until it has caught up. One that makes no progress at all is no longer in sync after a while, and waited for no longer.
Outside the hours of the window, mirrors do not fetch what they lack.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from leveret.base.shared_values import shared
from leveret.broker.mirrors.status import lags
from leveret.broker.remote.peer_frames import U64
from leveret.links import frame_types
from leveret.links.proposals import BadFrame
from leveret.replication.ring_frames import PLAIN, Options

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.mirrors.manager import Mirror
    from leveret.metadata.model.records import QueueSpec
    from leveret.metadata.rules.ha_policy import Window



class HaRules:
    """The rules of all copies on one node, and what other nodes have said about their links and their stopping."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.wall_ms = 0  # The time of day, as of the last tick.
        self.departed: dict[str, int] = {}  # Nodes that have said farewell: the index of the metadata they had then.
        self.linked: dict[str, frozenset[str]] = {}  # By node with a link to this one: the nodes it has links to.
        self.without_master: dict[Mirror, int] = {}  # Copies whose master failed: in which epoch.
        self.windows: dict[Mirror, Window] = {}  # Queues whose asynchronous mirrors may be behind only so far.
        self.timed: dict[Mirror, None] = {}  # Queues whose mirrors are synchronised only at certain hours.
        self.blocking: dict[Mirror, None] = {}  # Queues that are not served while their mirrors are synchronised.
        self._last: tuple[tuple[object, ...], Options] = ((), PLAIN)  # Of the last queue: reasons, options.
        self.late: dict[Mirror, int] = {}  # Queues whose window is exceeded: the last block that waits for its confirm.

    # -- Options -------------------------------------------------------------------------------------------------

    def refresh_all(self) -> None:
        """Policies have changed, or something else that the options of all queues depend on."""
        self.broker.mirrors.broadcast.tell(self.refresh)

    def refresh(self, mirror: Mirror) -> None:
        options = self._options(mirror)
        self.broker.mirrors.block(mirror)
        if options != mirror.member.options:
            mirror.member.change_options(options)
            self.broker.mirrors.touch(mirror)
            if mirror.member.master is not None:
                self.broker.mirrors.journal.on_sync(mirror)

    def _options(self, mirror: Mirror) -> Options:
        member_changes, view = self.broker.member_changes, mirror.member.view
        if member_changes is None:
            return PLAIN
        rules = member_changes.rules_of(mirror.spec)
        self._put(self.windows, mirror, rules.window if rules.asynchronous and rules.window.has_limit else None)
        for kept, holds in ((self.timed, bool(rules.window.hours)), (self.blocking, rules.blocking)):
            if holds:
                kept[mirror] = None
            else:
                kept.pop(mirror, None)
        failed = view is not None and self.without_master.get(mirror) == view.epoch and not self._is_seen(view.master)
        wanted = (
            rules.asynchronous,
            rules.strategy != "full",
            rules.on_failure_always and failed,
            rules.fills and rules.window.is_open(self.wall_ms),
            member_changes.defaults.fill_bytes_per_tick,
            rules.batch,
        )
        if wanted != self._last[0]:
            asynchronous, incremental, promote_always, filling, fill_bytes_per_tick, fill_messages = wanted
            options = replace(
                PLAIN,
                asynchronous=asynchronous,
                incremental=incremental,
                promote_always=promote_always,
                filling=filling,
                fill_bytes_per_tick=fill_bytes_per_tick,
                fill_messages=fill_messages,
            )
            self._last = (wanted, shared(options))
        return self._last[1]

    def _put(self, windows: dict[Mirror, Window], mirror: Mirror, window: Window | None) -> None:
        if window is not None:
            windows[mirror] = window
        elif windows.pop(mirror, None) is not None:
            self._on_time(mirror)

    def forget(self, mirror: Mirror) -> None:
        for each in (self.without_master, self.windows, self.timed, self.late, self.blocking):
            each.pop(mirror, None)

    # -- Others ----------------------------------------------------------------------------------------------------

    def on_farewell(self, peer: str, payload: bytes) -> None:
        """Raises `BadFrame`."""
        if len(payload) != U64.size:
            raise BadFrame("a farewell without an index")
        (self.departed[peer],) = U64.unpack(payload)

    def on_peer_up(self, peer: str) -> None:
        self.departed.pop(peer, None)

    def tell_links(self) -> None:
        client_ends = self.broker.client_ends
        for peer in client_ends:
            self.broker.node.send(peer, frame_types.LINKED, ["\n".join(client_ends).encode()])

    def on_linked(self, peer: str, payload: bytes) -> None:
        """Raises `BadFrame`."""
        try:
            self.linked[peer] = frozenset(payload.decode().split("\n"))
        except UnicodeDecodeError:
            raise BadFrame("names of nodes that are none") from None
        self._look_at_bereaved()

    def _is_seen(self, node: str) -> bool:
        return any(node in others for others in self.linked.values())

    def _look_at_bereaved(self) -> None:
        mirrors = self.broker.mirrors

        def tell(mirror: Mirror) -> None:
            if mirror in self.without_master:
                self.refresh(mirror)

        if self.without_master or mirrors.broadcast:  # Else: some copies may not have been told of a failed master yet.
            mirrors.broadcast.tell(tell)

    def on_lost(self, peer: str) -> None:
        """The link to a node is lost: what it has said about its links counts no longer."""
        if self.linked.pop(peer, None) is not None:
            self._look_at_bereaved()

    def on_failed(self, mirror: Mirror, peer: str) -> None:
        """A node was lost that had not said farewell."""
        view = mirror.member.view
        if view is not None and view.master == peer:
            self.without_master[mirror] = view.epoch
            self.refresh(mirror)

    def is_down(self, spec: QueueSpec) -> bool:
        """Returns whether the queue has no master until a node returns that stopped in good order. This is not known
        before this node has applied all metadata of the other: it may have made a mirror master just before it
        stopped."""
        view, client_ends = spec.view, self.broker.client_ends
        if view is None or view.master not in self.departed:
            return False
        if self.broker.metadata.index < self.departed[view.master]:
            return False
        return not any(name == self.broker.node_name or name in client_ends for name, _ in view.in_sync)

    # -- Time ------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Called with each tick of the ring's members: confirms what waited for a mirror that has caught up."""
        for mirror in list(self.late):
            if not self._is_late(mirror):
                self._on_time(mirror)

    def on_minute(self) -> None:
        """Called once a minute: the hours in which mirrors are synchronised may have begun or ended."""
        for mirror in list(self.timed):
            self.refresh(mirror)

    def may_confirm(self, mirror: Mirror, durable: int) -> bool:
        """Returns whether publishes up to this block may be confirmed now; else they are when the window permits it."""
        if mirror not in self.windows or not self._is_late(mirror):
            self.late.pop(mirror, None)
            return True
        self.late[mirror] = durable
        return False

    def _is_late(self, mirror: Mirror) -> bool:
        window = self.windows.get(mirror)
        return window is not None and any(
            window.is_exceeded(lag.messages, lag.bytes, lag.seconds)
            for lag in lags(mirror, None, self.wall_ms)
            if lag.in_sync and lag.messages is not None and lag.bytes is not None and lag.seconds is not None
        )

    def _on_time(self, mirror: Mirror) -> None:
        durable = self.late.pop(mirror, None)
        if durable is not None:
            self.broker.mirrors.on_confirmed(mirror, durable)
            self.broker.mirrors.touch(mirror)

    # -- Leaving -----------------------------------------------------------------------------------------------------

    def say_farewell(self) -> None:
        for peer in self.broker.client_ends:
            self.broker.node.send(peer, frame_types.STOPPING, [U64.pack(self.broker.metadata.index)])
