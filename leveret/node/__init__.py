"""The process of one node: `server` starts and stops it, `node` runs the turn, `storage` commits to disk.

All I/O of a node is here: `config`, `system` (files, logs, memory, alarms), `sockets`, `cluster` (membership,
consensus, maintenance), `shovels`, `federation`, `stats` and `admin` (the commands of leveretctl). `leveret.management`
is built on it.

It imports the broker and its sessions.
"""
