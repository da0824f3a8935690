"""Sessions of clients, one package for each protocol.

A session turns the bytes of one client into publishes, subscriptions and declarations, and the broker's answers into
bytes. `amqp` is AMQP 0-9-1; `mqtt` and `stomp` stand beside it, on the same interface of the broker, and import nothing
of each other. What they share is here: `output`, the bytes for a client, `peer`, its address, and `without_channels`,
what connections of MQTT and STOMP have in common. They import the broker and `leveret.protocol`.
"""
