"""A node as a member of its cluster: Raft and its disk, discovery, partitions, maintenance, repair, the witness.

The node and its commands import it; it imports `node.sockets`, `node.system` and what is below these.
"""
