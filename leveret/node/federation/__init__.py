"""Federation links of this node: the shell around `leveret.federation`.

- `supervisor`: runs a worker for each link that the metadata assign to this node; at the leader, finds out which links
  there should be and assigns them.
- `worker`: one link: connects, and sets up both ends, as a `leveret.node.shovels.link_worker`.
- `exchange_worker`, `queue_worker`: what is different for exchanges and queues.
- `calls`: arguments of AMQP methods that links send.

The node imports `supervisor`; it imports `leveret.federation`, `leveret.metadata` and `node.shovels`.
"""
