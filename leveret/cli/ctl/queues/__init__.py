"""Commands of leveretctl about queues: listings, mirrors, leases, spools, shovels, federation, rebalancing.

Only `cli.ctl` imports it; it imports `cli.ctl.base`.
"""
