"""What all commands of leveretctl share: options, connecting to a node, formatters, help, progress.

All commands import it; it imports the node's sockets and configuration, and packages below the node.
"""
