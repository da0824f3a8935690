"""AMQP 0-9-1 as data: frames, methods, field tables, properties, reply codes.

Bytes become values and values become bytes; nothing here keeps state, except for the shapes of headers that a publisher
has used (`header_shapes`). Connections and channels are in `leveret.sessions.amqp`. The broker uses this package too,
since a message stays the bytes that its publisher sent. Every package may import it; it imports nothing of Leveret.
"""
