"""What nodes say to each other over their links, by the number of the frame's kind. See `link` for the frame itself.

Members talk with frames on their links; whoever is no member (yet) asks with a call.
"""

from __future__ import annotations

from typing import Final

# Consensus: see `leveret.raft.message_codec` and `proposals`.
RAFT: Final = 16
FORWARD: Final = 19
BUSY: Final = 20
WHEN: Final = 21
SETTLED: Final = 22
MEMBERS: Final = 25  # Whom the sender knows to have been agreed on: see `leveret.node.cluster.consensus`.
SIGNS_OF_LIFE: Final = (
    26  # By what others may know that the sender has died, in JSON: see `leveret.node.cluster.two_nodes`.
)

# Calls, in JSON.
HELLO: Final = 17  # Who are you, and do you belong to a cluster?
JOIN: Final = 18  # Take me in.
LEAVE: Final = 23  # Take a member out.
RENAME: Final = 24
REST: Final = 27  # A node stops for a while: count without it.
CONTROL: Final = 32  # leveretctl

# Remote queues: see `leveret.broker.remote.peer_frames`.
PUBLISH: Final = 40
SETTLE: Final = 41
ASK: Final = 42
LIMIT: Final = 43
SAFE: Final = 44
DELIVER: Final = 45
ANSWER: Final = 46
CANCELLED: Final = 47
CREDIT: Final = 48
TAKEN: Final = 49
STAGE: Final = 51  # Messages of a queue that is to move here.
PASSED: Final = 54  # What is out with clients of a queue that has come here, and what became of it.
PRODUCE: Final = 60  # Messages of producers, which number them.

# Direct reply-to: see `leveret.broker.remote.direct_reply_to`.
REPLY: Final = 56
REPLY_ASK: Final = 57
REPLY_ANSWER: Final = 58

# How many connections and channels there are of those that are limited, in JSON: see
# `leveret.broker.connection_limits`.
CENSUS: Final = 59

# A node's alarms, as text: the names of what is short, with blanks between.
ALARM: Final = 50
ROOM: Final = 67  # How many bytes it may write until its disk alarm is set, in eight bytes.

# A node stops in good order: whatever it leads will be led by it again, unless it said otherwise. The index of the
# metadata that it has applied, in eight bytes.
FAREWELL: Final = 53

# Whom the sender has links to, as text: names, one in a line. See `leveret.broker.mirrors.ha_rules`.
LINKED: Final = 55

# A node serves nobody for now, or does again: see `leveret.node.cluster.partition_pause`. The number of the pause, in
# eight bytes.
PAUSED: Final = 64
PAUSE_SEEN: Final = 65
RESUMED: Final = 66  # Empty.

# Another frame, compressed: see `leveret.links.compression`.
PACKED: Final = 68

# The rings of mirrored queues: see `leveret.replication.frame_codec`.
RING: Final = 52
