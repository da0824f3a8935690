"""Messages on their way: batches, confirms, consumers and their order, unacknowledged deliveries,
and how a queue tells others what happens to them (`extension`).

The lowest part of the broker: queues of all kinds, local and remote, are built on it.

Sessions and the node may import it, too; it imports `leveret.metadata` and packages below that.
"""
