"""The bytes of the log: blocks of a queue and their encoding, the marks of a queue, errors.

Every package may import it; it imports `leveret.base`.
"""
