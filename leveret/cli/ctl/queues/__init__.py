"""Commands of leveretctl about queues: listings, mirrors, leases, spools, rebalancing."""
