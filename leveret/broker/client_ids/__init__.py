"""Client ids of MQTT: one connection each in the whole cluster, and the sessions that belong to them.

`client_ids` claims and releases them and changes sessions, `wills` publishes the wills of clients that are lost. What
is agreed on is in the metadata: `metadata.client_sessions` has the rules.

Imports the metadata and what is below the broker; may be imported by the broker, by sessions, and by the node for
listings.
"""
