"""Shovels of this node: the shell around `leveret.shovel`.

- `supervisor`: runs a worker for each shovel that the metadata assigns to this node; at the leader, assigns them.
- `standing`: whether this node may run shovels and federation links.
- `link_worker`: what workers of shovels and of federation links share: attempts, and why they failed.
- `worker`: one shovel: connects, and sets up both ends.
- `running_link`: a link between two open connections.
- `wire`: a connection of the client over TCP or TLS; `direct`: over a pipe, to this node itself.

The node imports `supervisor`; it imports `leveret.shovel`, `leveret.client` and `node.sockets`.
"""
