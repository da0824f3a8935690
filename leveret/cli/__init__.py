"""The commands a person types: `leveret`, and `leveretctl` in `ctl`.

The commands are public, the modules are not: no other package imports them. They import the packages that they start,
each when it is needed.
"""
