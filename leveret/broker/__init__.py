"""Exchanges, queues, consumers and policies: what a broker decides, with no I/O."""
