"""Sessions of clients, one package for each protocol.

A session turns the bytes of one client into publishes, subscriptions and declarations, and the broker's answers into
bytes. `amqp` is AMQP 0-9-1; `mqtt` and `stomp` stand beside it, on the same interface of the broker, and import nothing
of each other. What all of them need is here: `output`, the bytes for a client, and `peer`, its address. They import the
broker and `leveret.protocol`.
"""
