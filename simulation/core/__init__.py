"""What nodes run on: the event loop in virtual time, the network, the disk, the machine, and small limits.

Imports nothing else of the simulation.
"""
