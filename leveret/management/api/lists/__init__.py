"""Handlers that list: overview, queues, exchanges, bindings, connections, channels, consumers.

Only `management` imports it. It imports `management.api.common`, `management.http` and the node.
"""
