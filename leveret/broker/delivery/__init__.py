"""Messages on their way: batches, confirms, consumers and their order, unacknowledged deliveries.

The lowest part of the broker: queues of all kinds, local and remote, are built on it.
"""
