"""Figures of a node: rates and history for charts, rows about queues, memory by what holds it, reads by range.

The node, its commands and the HTTP API import it; it imports `node.system` and packages below the node.
"""
