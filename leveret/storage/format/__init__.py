"""The bytes of the log: blocks of a queue, their encoding, the marks of a queue, and what damage looks like.

Everybody may import it; it imports nothing of Leveret.
"""
