"""What handlers share: authorization, request bodies, paged listings, and a client inside the node.

All handlers import it; it imports `management.http` and the node.
"""
