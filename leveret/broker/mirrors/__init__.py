"""Mirrored queues at this node: the broker's side of `leveret.replication`.

`manager` drives the members of all mirrored queues here, `copy_store` keeps their blocks, `member_changes` gives a
queue the mirrors its policy asks for, `convert` turns a queue into a mirrored one and back.

The broker and the node import it. It imports `broker.remote`, `broker.kinds` and what is above them.
"""
