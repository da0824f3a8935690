"""Sessions of clients, one package for each protocol.

A session turns the bytes of one client into publishes, subscriptions and declarations, and the broker's answers into
bytes. `amqp` is AMQP 0-9-1; other protocols stand beside it, on the same interface of the broker, and import nothing
of each other.
"""
