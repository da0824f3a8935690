"""Queues whose home is another node.

`remote_queue` stands for such a queue and describes the protocol; `client_end` and `owner_end` are its two ends, and
`peer_frames` its bytes. `outbox` sends publishes again after a lost link, `store_and_forward` keeps those for a queue
that cannot be reached, `migrate` moves a queue, and `handover` passes on acknowledgements to a new master.

The broker, `broker.mirrors` and the node import it. It imports `broker.queue` and what is above that.
"""
