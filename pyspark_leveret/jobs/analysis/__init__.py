"""What jobs compute from journals and ledgers, as DataFrames.

- `journal_facts`: what is known of each message, as labelled ranges of message numbers.
- `range_sweep`: lays ranges over each other and adds them up.
- `ledgers`: what clients wrote down.
- `faults`: what went wrong in the cluster, and when.
- `alarms`: the streaming form of the audit.
- `latency`: how long messages took.

For the jobs only. It imports `pyspark_leveret.jobs.journal`, `support`, and the connector's shared modules.
"""
