"""The broker: vhosts, exchanges, queues, consumers and policies, with no I/O.

`broker` is the object that a node drives, and `node_interface` what it asks of the node. The subjects have packages:
`routing`, `delivery` (messages on their way out and back), `queue`, `kinds` (priority queues, streams, delayed
messages), `dead_letter`, `event_journal`, `remote` (queues at other nodes), `mirrors`, and for MQTT `retained` and
`client_ids`. `session` is the interface on which the sessions of all protocols stand (`leveret.sessions`).

Sessions and the node import it; it imports `leveret.replication`, `leveret.links`, `leveret.metadata` and what is
above these.
"""
