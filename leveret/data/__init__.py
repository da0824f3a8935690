"""Public: reads queues in bulk over the management port, and works with leases. See docs/data.md.

- `client`: `DataClient`, which applications and the Spark connector use.
- `sheet`: the format of the answers, messages as columns.
- `ranges`: makes sheets from the log. For nodes only.

`client` and `sheet` are the public API and import nothing of the broker.
"""
