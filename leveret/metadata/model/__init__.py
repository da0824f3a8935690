"""Records of the metadata (queues, exchanges, bindings, users, policies, views) and the commands that change them.

Everybody may import it; it imports `leveret.base` and `leveret.protocol`.
"""
