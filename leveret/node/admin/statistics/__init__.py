"""Commands that nodes ask of each other for the HTTP API: rows of clients and nodes, and figures.

`node.admin` finds them by name; the HTTP API imports them for the rows of its own node. They import `node.stats` and
the other commands.
"""
