"""MQTT clients in the simulation: they speak packets to the nodes, over the simulated network, through all its faults.

    python -m simulation.mqtt --seed 7 --nodes 3 [--mirrored] [--ailing] [--drained] [--trace] [--count 20]

`packets` is MQTT as a client speaks it, `client` a client with a memory of its own, `checker` what must hold, `world`
the run. Imports nothing of the broker but the commands that an operator gives; may be imported by tests only.
"""
