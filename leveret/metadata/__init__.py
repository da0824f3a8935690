"""Cluster metadata: the store that all nodes agree on, its bytes, and documents made of it.

`model` has the records and commands, `rules` what follows from them; `mqtt`, `shovel` and `federation` have the same of
their subjects. Here are the store that applies commands, its snapshot, definitions (RabbitMQ's JSON export) and the
planner that rebalances queue masters. Pure: no I/O, no clock.

Packages from `links` on import it; it imports its own packages and those above them.
"""
