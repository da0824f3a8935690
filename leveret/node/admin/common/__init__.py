"""Shared parts of all control commands: declarations, arguments, errors, and the columns of lists.

All commands, leveretctl and the HTTP API import it; it imports `leveret.base` only.
"""
