"""Messages from one broker to another: a *link* takes from a source and publishes to a destination.

    source ══ basic.deliver ══▶ Link ══ basic.publish ══▶ destination
    source ◀══ basic.ack ══════ Link ◀══ basic.ack ══════ destination

- `link`: the machine of a link. Deliveries in, publishes out; confirms in, acknowledgements out. No I/O, no clock.
- `rewriting`: the properties and headers that a shovel sets.
- `retries`: when to try again.

What a link moves is said by the parameters of a shovel (`leveret.metadata.shovel`), and which node runs it by the
metadata (`leveret.metadata.assignments`). `leveret.node.shovels` connects a link to two brokers, each over TCP, TLS or,
if it is this cluster, over a pipe within the process: the same machine of a client (`leveret.client.machine`) speaks to
all of them.

**Nothing is lost.** With `on-confirm`, a message is acknowledged at the source when the destination has confirmed it.
Whatever breaks between the two, the source has the message still, and delivers it again.

**Nothing is doubled between two Leverets.** What is delivered again may have arrived before. A link that has a Leveret
at both ends asks the source for the *origin* of each message: the id of its cluster and queue, and the message's number
there. The origin travels as a header in front of all others. The destination takes it out, and each queue there takes
each origin once (`leveret.broker.delivery.origins`), whoever brings it and in which order: also a worker whose time is
over and who does not know it yet. What is taken then, though the source has delivered it before, is marked as
redelivered: a consumer may have seen it at a master that was lost with it.

**Nothing waits in memory.** A message that has arrived is written to the destination at once. If the destination does
not read, the source is not read from. A link knows of a message that is under way its number and nothing else.

`node.shovels` imports it; it imports `leveret.client` and `leveret.protocol`.
"""
