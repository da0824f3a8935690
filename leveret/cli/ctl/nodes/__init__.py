"""Commands of leveretctl about nodes: status, checks, the cluster, maintenance, partitions, logs, settings."""
