"""The AMQP 0-9-1 client of shovels, `leveret perf`, `leveret transfer`, the Spark connector and the benchmarks.

- `amqp`: frames and methods as bytes, in both directions. No I/O.
- `handshake`: logs in, as a machine that takes methods and gives back bytes. No I/O.
- `address`: amqp:// addresses, also those kept in a file or an environment variable.
- `tls`: makes TLS contexts and explains TLS errors.
- `connection`: a connection with one channel whose calls block until their answer is there.
- `endpoint`: the same connection, non-blocking, watched by a selector.
- `machine`: a connection as a machine, for use beside an event loop. No I/O. Shovels use it.

It is made for speed and knows only what these programs need; applications use pika, aio-pika and the like. The rest of
the project may import all of it; it is no public API. It imports the standard library only.
"""
