"""Commands about users, vhosts, permissions, policies, parameters and definitions.

`node.admin` finds them by name; the HTTP API and the start of a node import functions of them. They import
`node.admin.common`, `node.cluster` and packages below the node.
"""
