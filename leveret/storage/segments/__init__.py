"""Segment files, the jobs that read and write them, and the indexes of queues' contents.

Import `disk` (files, or a simulated disk) and `disk_jobs` from outside; it imports `storage.format` and `leveret.base`.
"""
