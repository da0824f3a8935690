"""Figures of a node: rates and history for charts, rows about queues, memory by what holds it, reads by range."""
