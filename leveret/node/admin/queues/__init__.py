"""Commands about queues, their mirrors, consumers, messages, leases, spools, shovels and federation.

`node.admin` finds them by name; the HTTP API imports functions of them. They import `node.admin.common`, `node.stats`
and what is below these.
"""
