"""Queues as data: the format in which messages are read in bulk (`sheet`), and a client for it (`client`)."""
