"""Reads queues into Spark, as tables and as streams.

- `batch`, `stream`: the two readers for a Leveret cluster. `planning` decides which messages they read, `reading` reads
  a piece of a queue in a task, `arrow` and `headers` turn sheets of messages into Arrow tables, `filters` applies
  conditions of a query, `progress` tells how far a stream is behind, and `wait_for_messages` waits for news.
- `earlier_stream`: the stream reader for versions of Spark that tell a source less.
- `rabbitmq_stream`: the stream reader for any other AMQP broker, with `amqp_consumer` as its connection.

Only `pyspark_leveret` itself imports this package, and tests. It imports the shared modules of `pyspark_leveret`,
`leveret.data`, `leveret.client` and the AMQP codec, never the broker.
"""
