"""`leveret perf`: a load for any AMQP 0-9-1 broker, and what the broker made of it.

Clients often share the machine with the broker that they measure, and a client library spends more time on a message
than a fast broker does; then the figures are the library's. So all of this is one thread around one selector that moves
bytes:

- A publisher composes a message once. What changes is a time stamp in its body, and messages that leave in one send
  share it: a batch is a repetition of bytes, which costs the same for one message and for five hundred (`publisher`).
- A consumer learns from one delivery how they look. While they keep looking so, a bundle of a thousand is checked and
  its stamps are read by a handful of operations that each go over all of them (`consumer`). What looks different, or
  comes from somebody else, is taken apart frame by frame.
- Latencies are counted, not kept (`histogram`).

`arguments` and `options` read the command line, `runner` is the loop, `report` prints results for people and programs.
The protocol is that of `leveret.client`. Nothing here is a public API: `leveret perf` is the way to use it.
"""
