"""`leveret perf`: puts a load on any AMQP 0-9-1 broker, and measures throughput and latency.

Clients often share the machine with the broker that they measure, and a client library spends more time on a message
than a fast broker does; then the figures are those of the library. So all of this is one thread around one selector
that moves bytes:

- A publisher encodes a message once. Only a time stamp in its body changes, and messages of one send share it: a batch
  is a repetition of bytes, which costs the same for one message and for five hundred (`publisher`).
- A consumer takes the form of deliveries from one of them. While they keep that form, a thousand deliveries are
  checked, and their time stamps read, by a handful of operations (`consumer`). Other deliveries are parsed frame by
  frame.
- Latencies are counted, not kept (`histogram`).

`arguments` and `options` read the command line, `runner` is the loop, `report` prints results for people and programs.
The protocol is that of `leveret.client`. Nothing here is a public API: `leveret perf` is the way to use it.

`leveret perf` and the benchmarks import it; it imports `leveret.client`.
"""
