"""Federation: messages of an exchange or a queue of another broker, the *upstream*, come here, the *downstream*.

- `bindings`: the bindings that an exchange has here, and should have upstream; names of what is made there.
- `headers`: the headers that tell where a message has been, and by which it is not sent in a circle.
- `link`: the machine of a link: that of a shovel, which leaves out messages that must not go on.

**An exchange.** A link makes a queue upstream, and an internal exchange that leads to it. Each binding of the exchange
here becomes a binding between the exchange there and the internal one, so that only what is wanted here travels. While
the line is down, messages wait in that queue.

    upstream: X ══ bindings as here ══▶ internal exchange ══▶ queue ══ link ══▶ X :downstream

**A queue.** A link consumes from the queue upstream, with a low priority and only while a consumer here has room and
nothing waits here: messages stay where they were published until somebody wants them elsewhere.

Names, arguments and headers are RabbitMQ's, so that either side may be one. Which links there are is up to the metadata
(`leveret.metadata.federation`); `leveret.node.federation` runs them.

It imports `leveret.shovel`, `leveret.metadata` and `leveret.protocol`; `node.federation` imports it.
"""
