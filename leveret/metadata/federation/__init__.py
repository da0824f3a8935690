"""What the cluster knows of federation: upstreams, and the links that follow from policies.

- `parameters`: the keys of upstreams and upstream sets, RabbitMQ's checks and texts, and the `Upstream` that they make.
- `links`: the links of an exchange or a queue: its policy names upstreams, and each of them is one link.
- `plan`: all links that there should be, kept up to date by the leader.

A link is no parameter. It follows from a policy, an upstream and an exchange or a queue, any of which may change; the
leader compares what follows with what is assigned, and proposes the difference (`SetLinks`). Which node runs a link is
decided as for shovels: see `leveret.metadata.assignments`.

It imports `metadata.rules`, `metadata.model` and `metadata.shovel`; `leveret.metadata` imports it.
"""
