"""What a run may have besides plain queues, drawn from its seed.

`queue_features` (`--featured`): expiry, length limits, dead-lettering, priorities, single active consumers.
`broker_features` (`--special`): streams, delayed messages, transactions, direct replies, delivery limits, and limits of
vhosts. Imports nothing else of the simulation.
"""
