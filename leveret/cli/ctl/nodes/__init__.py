"""Commands of leveretctl about nodes: status, checks, the cluster, maintenance, partitions, logs, settings.

Only `cli.ctl` imports it; it imports the other commands and `cli.ctl.base`.
"""
