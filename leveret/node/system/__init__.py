"""What a node needs of its machine: clock, data folder, log files, threads, memory, alarms, systemd.

It imports `node.config` and packages below the node.
"""
