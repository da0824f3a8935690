"""Measurements of one node, in addition to the workloads. Imports `ruler`."""
