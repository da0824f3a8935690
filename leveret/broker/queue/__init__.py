"""One queue on its home node: what waits, its limits, its consumers, and what it remembers besides messages.

`queue` is the class; `host` is what a queue asks of its broker; `features` gives it what its rules ask for: leases,
delivery counts, the event journal, deduplication. It imports `broker.delivery`, `broker.event_journal`
and packages below the broker.
"""
