"""How a cluster grows, from 3 to 50 nodes: measured, simulated and reckoned. `python -m benchmarks.scaling`.

Imports the other packages, and the simulation.
"""
