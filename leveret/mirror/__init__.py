"""Mirrored queues."""
