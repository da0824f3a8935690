"""Kinds of queues that differ from the plain one: priority queues, streams, delayed messages.

They are built on `broker.queue` and `broker.delivery`.

The broker, its packages below `kinds` and the node import `stream` and `priority_queue`.
"""
