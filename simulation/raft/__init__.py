"""Raft alone, over its real log: `python -m simulation.raft`. Imports `core`."""
