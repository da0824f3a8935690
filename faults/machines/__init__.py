"""Nodes with their own network and disk, and what can be done to them.

- `fuse`, `forgetful`: a disk that forgets what was not synced.
- `switch`: a network that loses, delays, doubles and reorders packets.
- `helper`: starts these two and tells them what to do.
- `node`, `leveret_node`, `rabbitmq_node`: processes of the two brokers. `false_clock` starts one whose clock is wrong.
- `cluster`: some of them, with their network and disks.

Tests and cases use `cluster`; nothing here knows clients or histories.
"""
