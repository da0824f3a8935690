"""Handlers of the HTTP API. `common` is what they share; each other package has handlers of one kind.

Only `management` imports them. They import `management.http` and the node.
"""
