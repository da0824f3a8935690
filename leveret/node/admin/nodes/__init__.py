"""Commands about nodes and the cluster: status, maintenance, partitions, rebalancing, diagnostics.

`node.admin` finds them by name; the HTTP API imports functions of them. They import `node.admin.queues`,
`node.cluster` and what is below these.
"""
