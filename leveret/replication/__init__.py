"""Mirrored queues: a `Member` for each queue that this node is master or mirror of.

A member is a machine: events go in, effects come out, and the same input gives the same output. `ring` tells how the
protocol works, `view` what consensus decides, `frames` holds all values. This is how a shell drives it.

**A turn.** Give a member what has happened since the last turn (frames, syncs, links, views, a tick, blocks of its
queue), then perform `take()` in its order, until it gives nothing more. Do so before giving it a view: whatever was
said under the old one must have been done. Frames of all members for one peer go into one `Packer`, and its payloads
onto the link at the end of the turn; a link has one `Unpacker`. A `ProtocolError` means that this node must not serve
the queue any more.

**Links** are the peers' business, beats included: one for each pair of nodes. `on_peer_up` and `on_peer_down` go to
every member whose ring names the peer; frames of a peer come between the two, and a link that lost one frame is down.

**Ticks** are for trouble. Tick, every 50 ms or so, the members whose `wants_tick` is true after their turn; the others
only change when something is given to them. A thousand idle queues cost nothing.

**Views.** `ProposeView` is a metadata command: compare-and-set of the queue's view, refused if `misfit(old, new)` gives
a reason. Its proposer is not told of the outcome except by `on_view`, which everybody gets with every committed view
(some may be skipped). The *first* view of a process is read through the consensus: a barrier read, not what the local
log happens to hold. `born` is true only where this very process proposed the command that made the queue, or that made
it mirrored. In the latter case the epoch is above that of all its blocks; and a queue without mirrors takes a new epoch
at each start, for it may have lost blocks that were mirrored once. `on_majority` tells whether this node reaches the
consensus. `Left`: the ring goes on without this node. Its copy may be forgotten and the member dropped; should the node
be named again, it gets a new one, which sees no older view, with a higher `life` and, if the copy was forgotten,
another disk id: words of the old one may still be on their way, and the master must not take what it had for what the
new one has.

**The master's queue.** `Started(epoch, number, tail, forced)`: make the queue from what is stored and the blocks of
`tail` behind it; its epoch is `epoch`, its last block `number`. From then on each block it makes is given to `submit`
(in order, none left out) while `serving`; publishers wait while `is_crowded`. `Confirmed(durable, received)`: confirm
persistent messages of blocks up to the first number, transient ones up to the second. `Stopped`: drop the queue, it is
led elsewhere; if it was handed over, blocks that are not confirmed yet are so when they are applied here.
`HandOverDue(to)`: submit a last block with what the next master should know of deliveries, and call `hand_over(to)`;
the same for a planned move. `Resumed`: it was given up.

**The disk.** What is stored is the fold of *applied* blocks only. Each `Write(id, change, confirmed)` is written in the
order of ids, and `on_synced(id)` says that all up to this one are on disk; many may share a sync.

    Append(blocks)     on disk, but without effect on what is stored until `Apply(blocks)`
    Truncate(number)   blocks above it are void; none was applied
    Restart(...)       blocks not applied are void; without `have`, so is all that is stored. The next block is cut + 1,
                       and message numbers up to `bound` are taken
    Fill(...)          of messages after + 1 to upto, settle all but `live`, store `runs` (not what was settled already)
    Complete(read_at)  nothing is missing any more

`confirmed` is noted along with a write, so that a start finds `Recovered`: what blocks up to some `base` add up to (at
least the highest number noted on what survived), and the blocks behind it as blocks. A torn end, never synced, is just
a shorter log. If something that had been synced is damaged, the member comes back with what is good before it *under
another disk id*, which is kept from then on: it may lack what it once acknowledged, and must not be counted on. A wiped
disk has a new id anyway. A full disk: no `on_synced` until there is space. A failed sync: `on_disk_failed`, and the
process does not trust that disk again before a restart has read it.

A queue that is not durable needs no disk: its disk id is that of the process, and every write is synced at once. On
durable queues transient messages travel in the same blocks; their contents need not be written, their numbers must.

**Reading.** `Read(request)`: note at once which messages of after + 1 to bound are stored, which is the state at
`request.read_at`; read contents of those not in `have`, until `bytes_max` are together; then `on_read`. One that is
settled meanwhile may be among them.

**Policies.** `change_ring` (master only) for who mirrors; `change_options`; `order` (master only) for a sync on demand,
`filling.progress`; `force` for an operator; `master.lag()` and `in_sync` for figures.
"""

from __future__ import annotations
