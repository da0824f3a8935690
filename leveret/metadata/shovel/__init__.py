"""What the cluster knows of shovels: their parameters, and which node runs which.

- `uris`: addresses of brokers, with the query parameters that RabbitMQ knows.
- `parameters`: the keys of a shovel, RabbitMQ's checks and texts, and the `Shovel` that they make.
- `records`, `commands`, `events`: who runs it. See `leveret.metadata.assignments` for the rules.

`leveret.shovel` moves messages by them.

It imports `leveret.protocol` and `leveret.base`.
"""
