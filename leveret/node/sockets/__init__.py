"""Sockets of a node: listeners, clients (TCP and WebSocket), TLS handshakes, and links to other nodes.

The node and its cluster use all of it; programs that call a node import `peer_socket` and `cookie`. It imports
`node.config` and packages below the node.
"""
