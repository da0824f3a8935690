"""Cluster metadata: the store that all nodes agree on, its bytes, and documents made of it.

`model` has the records and commands, `rules` what follows from them; here is the store that applies commands, its
snapshot, definitions (RabbitMQ's JSON export) and the planner that rebalances queue masters. Pure: no I/O, no clock.

Packages from `links` on import it; it imports `metadata.model`, `metadata.rules` and packages above them.
"""
