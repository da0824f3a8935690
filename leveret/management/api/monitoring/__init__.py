"""Health checks and Prometheus metrics.

Only `management` imports it. It imports `management.api.common`, `management.http` and the node.
"""
