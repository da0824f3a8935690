"""Handlers that list: overview, queues, exchanges, bindings, connections, channels, consumers."""
