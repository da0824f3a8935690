"""A node as a member of its cluster: Raft and its disk, discovery, partitions, maintenance, repair, the witness."""
