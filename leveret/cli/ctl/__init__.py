"""`leveretctl`: rabbitmqctl's commands.

`base` parses and prints; the commands are in `queues`, `nodes` and `metadata`, as in `leveret.node.admin`. Only
`leveret completion` imports it.
"""
