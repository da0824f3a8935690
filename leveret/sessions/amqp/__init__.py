"""AMQP 0-9-1 sessions: connections and channels as machines without I/O.

Import `connection` from outside: `Connection.receive` takes bytes, and what it has to send is in `Connection.output`.
It imports `leveret.protocol`, `leveret.broker` and what is below them.
"""
