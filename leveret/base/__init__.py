"""Small tools that know nothing of brokers: sets of ranges, packed numbers, timers, counters, safe regular expressions.

Everybody may import them; they import nothing of Leveret.
"""
