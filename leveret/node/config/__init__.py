"""Settings of a node: their names and types, and how they are read from files, environment and command line.

The node and everything above it may import it; it imports `leveret.metadata` and `leveret.base`.
"""
