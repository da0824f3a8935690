"""Shovels of this node: the shell around `leveret.shovel`.

- `supervisor`: runs a worker for each shovel that the metadata assigns to this node; at the leader, assigns them.
- `worker`: one shovel: connects, sets up both ends, and tries again when something fails.
- `running_link`: a link between two open connections.
- `wire`: a connection of the client over TCP or TLS; `direct`: over a pipe, to this node itself.

The node imports `supervisor`; it imports `leveret.shovel`, `leveret.client` and `node.sockets`.
"""
