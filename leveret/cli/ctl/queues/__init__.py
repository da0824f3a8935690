"""Commands of leveretctl about queues: listings, mirrors, leases, spools, shovels, rebalancing.

Only `cli.ctl` imports it; it imports `cli.ctl.base`.
"""
