"""MQTT 3.1, 3.1.1 and 5.0 as data: packets, properties, reason codes, topic names and filters.

Bytes become values and values become bytes; nothing here knows a broker, a session, or AMQP. `decoder` and `encoder`
turn bytes into `packets` and back, `topics` has the rules of names and filters, `topic_index` finds filters by topic
and topics by filter. Every package may import it.
"""
