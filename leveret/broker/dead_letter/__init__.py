"""Dead lettering: messages that expire, are rejected or do not fit are published to the dead-letter exchange.

`publisher` sends them, `retry` keeps those that no target has taken yet. Built on `broker.delivery` and
`broker.routing`.

Only the broker imports it.
"""
