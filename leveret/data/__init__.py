"""Public: reads queues in bulk over the management port, and works with leases. See docs/data.md.

- `client`: `DataClient`, which applications and the Spark connector use.
- `sheet`: the format of the answers, messages as columns.

It imports nothing of the broker.
"""
