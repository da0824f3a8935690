"""Where a message goes: exchange types, bindings, alternate exchanges, and the addresses of direct reply-to.

It imports `leveret.metadata`, `leveret.protocol` and `leveret.base`, and no other part of the broker.
"""
