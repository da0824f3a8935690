"""The kinds of frames between nodes, by number. See `link` for the format of a frame.

Members send frames on their links; a node that is not a member (yet), and leveretctl, use a call.
"""

from __future__ import annotations

from typing import Final

# Consensus: see `leveret.raft.message_codec` and `proposals`.
RAFT: Final = 16
FORWARD: Final = 19
BUSY: Final = 20
WHEN: Final = 21
SETTLED: Final = 22
MEMBERS: Final = 25  # The members that the sender knows of: see `leveret.node.cluster.consensus`.
SIGNS_OF_LIFE: Final = (
    26  # How others can prove that the sender has died, in JSON: see `leveret.node.cluster.two_nodes`.
)

# Calls, in JSON.
HELLO: Final = 17  # Asks for the receiver's name and its cluster.
JOIN: Final = 18  # Asks to join the cluster.
LEAVE: Final = 23  # Removes a member.
RENAME: Final = 24
REST: Final = 27  # A node stops for a while, and becomes a learner.
CONTROL: Final = 32  # A command of leveretctl.

# Remote queues: see `leveret.broker.remote.peer_frames`.
PUBLISH: Final = 40
SETTLE: Final = 41
ASK: Final = 42
LIMIT: Final = 43
SAFE: Final = 44
DELIVER: Final = 45
DELIVER_NUMBERED: Final = 69  # With the numbers that the messages have in their queue.
ANSWER: Final = 46
CANCELLED: Final = 47
CREDIT: Final = 48
TAKEN: Final = 49
STAGE: Final = 51  # Messages of a queue that moves to the receiver.
PASSED: Final = 54  # Unacknowledged messages of a queue that was handed over, and their outcome.
PRODUCE: Final = 60  # Messages with numbers of their producers, for deduplication.

# Direct reply-to: see `leveret.broker.remote.direct_reply_to`.
REPLY: Final = 56
REPLY_ASK: Final = 57
REPLY_ANSWER: Final = 58

# The numbers of limited connections and channels, in JSON: see `leveret.broker.connection_limits`.
CONNECTION_COUNTS: Final = 59

# A node's alarms, as text: the names of the resources, with blanks between.
ALARM: Final = 50
DISK_ROOM: Final = 67  # How many bytes the node may write until its disk alarm is set, in eight bytes.

# A node stops as planned: it will lead its queues again, except those that it has handed over. The index of the
# metadata that it has applied, in eight bytes.
STOPPING: Final = 53

# The nodes to which the sender has links, as text: names, one in a line. See `leveret.broker.mirrors.ha_rules`.
LINKED: Final = 55

# A node pauses or resumes: see `leveret.node.cluster.partition_pause`. The number of the pause, in eight bytes.
PAUSED: Final = 64
PAUSE_SEEN: Final = 65
RESUMED: Final = 66  # Empty.

# Another frame, compressed: see `leveret.links.compression`.
PACKED: Final = 68

# The rings of mirrored queues: see `leveret.replication.frame_codec`.
RING: Final = 52
