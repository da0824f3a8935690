"""What follows from the metadata: permissions, the policies that apply to a queue, where its mirrors belong.

Pure functions of records. They import `metadata.model`, `leveret.base` and `leveret.protocol`.
"""
