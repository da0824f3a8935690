"""Commands about nodes and the cluster: status, maintenance, partitions, rebalancing, diagnostics."""
