"""Retained messages: the last message of each topic that was published with MQTT's retain flag, for later subscribers.

`retained_messages` has all of it: `keep`, `find`, expiry. What is kept is in the metadata (`metadata.retained_messages`
says why); here are an index to find topics by filter, and the gathering of what this node proposes.

Imports the metadata and MQTT's topics; may be imported by the broker, by sessions, and by the node for listings.
"""
