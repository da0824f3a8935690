"""Sockets of a node: listeners, clients (TCP and WebSocket), TLS handshakes, and links to other nodes."""
