"""What happens to a cluster in each kind of run: faults, commands of operators, and how such a run begins and ends.

Each module draws the arguments of its steps for the plan, and carries them out. Imports every package but `raft` and
`ring`.
"""
