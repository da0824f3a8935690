"""What handlers share: authorization, request bodies, paged listings, and a client inside the node."""
