"""The event journal: a stream that tells what became of messages, for audits with Spark.

`node_journal` writes it for a node, `queue_journal` for one queue. Queues report to it; it is built on
`broker.delivery`.

The broker and its packages from `queue` on import it.
"""
