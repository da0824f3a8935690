"""Commands about queues, their mirrors, consumers, messages, leases and spools."""
