"""Clients that write histories: see `faults.history.entries`.

- `amqp`: a connection on a plain socket, with a deadline for everything.
- `load`: a thread that works at one node or another, the board of what is due, and all clients of a run.
- `publisher`, `consumer`: confirmed messages, and their deliveries.
- `lock`: queues used as locks.
- `registrar`: names that are declared, deleted and looked up.
- `mqtt`: a publisher and a subscriber with QoS 2.
- `lease`: readers that take a lease over from each other.

They may import `faults.history`, Leveret's codec of the protocol and its public client for leases; the broker is
reached by sockets only.
"""
