"""STOMP clients: the machine of one connection, on the broker's session interface.

`connection` takes bytes and makes bytes; `login`, `publisher`, `transactions`, `subscriptions` and `deliveries` are its
parts. `destinations` says what a destination is to the broker, `queues` what is declared for it, `messages` what a
message is to AMQP; `errors` has RabbitMQ's words, `limits` the settings. Nothing here does I/O.

It imports the broker and `leveret.protocol`.
"""
