"""Measurements of clusters: clients at other nodes, mirrors, and what clients notice when a master changes.

Imports `ruler` and `single`.
"""
