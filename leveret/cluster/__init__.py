"""Cluster metadata: commands, the store that folds them, and what is derived from it."""
