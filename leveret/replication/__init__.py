"""Replication of mirrored queues: a `Member` for each queue of which this node is master or mirror.

A member is a machine: events go in, effects come out, and the same input gives the same output. `member` says how the
protocol works, `leveret.metadata.model.view` what consensus decides, `ring_frames` has all values. This is how a shell
drives it.

**A turn.** Give a member what has happened since the last turn (frames, syncs, links, views, a tick, blocks of its
queue), then perform `take()` in its order, until it returns nothing more. Do so before giving it a view: the effects of
the old view must have been performed. Frames of all members for one peer go into one `Packer`, and its payloads onto
the link at the end of the turn; a link has one `Unpacker`. A `ProtocolError` means that this node must not serve the
queue any more.

**Links** have their own heartbeats: there is one for each pair of nodes. `on_peer_up` and `on_peer_down` go to
every member whose ring names the peer; frames of a peer come between the two, and a link that lost one frame is down.

**Ticks** are for trouble. Tick, every 50 ms or so, the members whose `wants_tick` is true after their turn; the others
only change when something is given to them. A thousand idle queues cost nothing.

**Views.** `ProposeView` is a metadata command: compare-and-set of the queue's view, refused if `misfit(old, new)` gives
a reason. Its proposer learns the outcome only by `on_view`, which every member gets with every committed view
(some may be skipped). The *first* view of a process is read through the consensus: a barrier read, not what the local
log happens to hold. `born` is true where this process, with a store that is open and metadata that are not behind, saw
the queue being made, or made mirrored: so no earlier process on this disk had a copy. In the latter case the epoch is
above that of all blocks of the queue; and a queue without mirrors takes a new epoch at each start, for it may have lost
blocks that were mirrored once. `on_majority` tells whether this node reaches the
consensus. `Left`: this node is no longer in the ring. Its copy may be deleted and the member dropped; if the node is
named again, it gets a new member, which sees no older view, with a higher `life` and, if the copy was deleted, another
disk id: frames of the old member may still arrive, and the master must not take its numbers for those of the new one.

**The master's queue.** `Started(epoch, number, tail, forced)`: make the queue from what is stored and the blocks of
`tail` behind it; its epoch is `epoch`, its last block `number`. That is the start block, with the marks that
`start_marks` gave for it: what the queue has to remember of the epoch before is in every log that has a block of the
new one. A new group has no epoch before: it is at rest until its first block, and then the start block comes before
that, numbered the same as if it had come at once. From then on each block it makes is given to `submit`
(in order, none left out) while `serving`; publishers wait while `is_crowded`. `Confirmed(durable, received)`: confirm
persistent messages of blocks up to the first number, transient ones up to the second. `Stopped`: drop the queue, it is
led elsewhere; if it was handed over, blocks that are not confirmed yet are confirmed when they are applied here.
`HandOverDue(to)`: submit a last block with the state of deliveries for the next master, and call `hand_over(to)`; the
same for a planned move. `Resumed`: the hand-over was given up.

**The disk.** The stored state is the sum of *applied* blocks only. Each `Write(id, change, confirmed)` is written in
the order of ids, and `on_synced(id)` says that all up to this one are on disk; many may share a sync.

    Append(blocks)     on disk, but without effect on the stored state until `Apply(blocks)`
    Truncate(number)   blocks above it are void; none was applied
    Restart(...)       blocks not applied are void; without `have`, so is the stored state. The next block is cut + 1,
                       and message numbers up to `bound` are used
    Fill(...)          of messages after + 1 to upto, settle all but `live`, store `runs` (not what was settled already)
                       and note that `requeued` may have been delivered
    Complete(read_at)  the copy lacks nothing any more

`confirmed` is written along with a write, so that a start finds `Recovered`: the sum of the blocks up to some `base`
(at least the highest number noted in a surviving write), and the later blocks as blocks. A torn end, never synced, is
just a shorter log. If synced data is damaged, the member comes back with what is good before the damage *under another
disk id*, which it keeps: it may lack blocks that it once acknowledged, and must not be relied on. A wiped disk has a
new id anyway. With a full disk there is no `on_synced` until there is space. After a failed sync, call
`on_disk_failed`; the process does not trust that disk again before a restart has read it.

A queue that is not durable needs no disk: its disk id is that of the process, and every write is synced at once. On
durable queues transient messages travel in the same blocks; their contents need not be written, their numbers must.

**Reading.** `Read(request)`: note at once which messages of after + 1 to bound are stored, which is the state at
`request.read_at`; read contents of those not in `have`, up to `bytes_max`; then call `on_read`. Messages that are
settled meanwhile may be included.

**Policies.** `change_ring` (master only) changes the members; `change_options`; `order` (master only) synchronises on
demand, see `filling.progress`; `force` is for an operator; `master.report_of()` and `in_sync` are for statistics.

`broker.mirrors` imports it; it imports `leveret.metadata`, `leveret.storage.format` and `leveret.base`.
"""

from __future__ import annotations
