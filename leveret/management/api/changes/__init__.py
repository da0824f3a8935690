"""Handlers that change something: declarations, messages, users, vhosts, policies, definitions.

Only `management` imports it. It imports `management.api.common`, `management.http` and the node.
"""
