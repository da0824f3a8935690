"""The durable log of one node: what its queues hold on disk.

`log` says how it works, docs/log-format.md what the files look like. `storage.format` has the bytes of a block,
`storage.segments` the files and the indexes over them; here are the log itself, its compaction, recovery and check,
and the log of mirrored queues. The node drives it; it imports `leveret.base`.
"""
