"""MQTT clients: the machine of one connection, on the broker's session interface.

`connection` takes bytes and makes bytes; `login`, `publisher`, `subscriptions` and `deliveries` are its parts.
`messages` and `routing_keys` say what a message is to AMQP, `limits` has the settings. Nothing here does I/O.

The node's sockets import `connection`. It imports the broker and `leveret.protocol`.
"""
