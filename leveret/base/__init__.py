"""Small tools that know nothing of brokers: sets of ranges, packed numbers, timers, counters, safe regular expressions,
values that many objects share.

Also constants on which two sides must agree: exit codes, flags of messages, and the protocol of leveretctl. All
packages may import these modules; they import nothing of Leveret.
"""
