"""Links between nodes: their handshake and frames, the failure detector, proposals on their way to the Raft leader.

Pure machines; `leveret.node.sockets` gives them sockets. They import `leveret.metadata` and `leveret.raft`.
"""
