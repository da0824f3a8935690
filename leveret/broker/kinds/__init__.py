"""Kinds of queues that differ from the plain one: priority queues, streams, delayed messages.

They are built on `broker.queue` and `broker.delivery`.
"""
