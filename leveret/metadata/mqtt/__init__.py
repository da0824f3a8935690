"""The state of MQTT clients that a cluster agrees on: retained messages, sessions by client id, and wills that are due.

`records` has the immutable records, `tables` the collections of them, `commands` what changes them, and `events` what
has changed. Commands are carried out by `metadata.retained_messages` and `metadata.client_sessions`. No packet of MQTT
is in here, and what a record holds for MQTT's own use (properties, contents) is opaque.

Imports nothing else of `metadata`; may be imported by all of it, and by the broker.
"""
