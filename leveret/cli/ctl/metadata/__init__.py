"""Commands of leveretctl about users, permissions, policies, limits and definitions.

Only `cli.ctl` imports it; it imports `cli.ctl.base`.
"""
