"""Publishes the rows of a DataFrame as messages.

- `writer`: the batch and stream writers that Spark calls.
- `encoding`: turns rows into AMQP frames.
- `publisher`: a connection that publishes and waits for confirms.

The job `replay` uses it, too. It imports the shared modules of `pyspark_leveret`, `leveret.client` and the AMQP codec,
never the broker.
"""
