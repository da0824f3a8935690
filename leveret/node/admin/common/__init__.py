"""Shared parts of all control commands: declarations, arguments, errors, and the columns of lists."""
