"""AMQP 0-9-1 as a client speaks it, written a second time, so that the broker's codec is not checked by itself.

Imports nothing else of the simulation, and nothing of the broker.
"""
