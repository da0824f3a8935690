"""Handlers that RabbitMQ does not have: mirrors of a queue, previews for the page, jobs, spools.

Only `management` imports it. It imports `management.api.common`, `management.http` and the node.
"""
