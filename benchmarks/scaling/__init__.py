"""How a cluster grows, from 3 to 50 nodes: measured, simulated and calculated. `python -m benchmarks.scaling`.

Imports the other packages, and the simulation.
"""
