"""One queue on its home node: what waits, its limits, its consumers, and what it remembers besides messages.

`local_queue` is what all kinds of queues have in common, `ordered_queue` what those have whose messages wait in order,
`queue` is a queue of RabbitMQ's, and other kinds are in `broker.kinds`; `host` is what a queue asks of its broker;
`features` gives it what its rules ask for: leases, delivery counts, the event journal, deduplication. It imports
`broker.delivery`, `broker.event_journal` and packages below the broker.
"""
