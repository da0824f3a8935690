"""Tools of all measurements: brokers as processes, cheap publishers and consumers, and the workloads.

Imports nothing else of the benchmarks.
"""
