"""Sockets of a node: listeners, AMQP clients, TLS handshakes, and links to other nodes."""
